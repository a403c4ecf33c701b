"""Where an engine runs by default."""

import ctypes
import warnings
from types import SimpleNamespace

import pytest
import torch

from switchyard import engine
from switchyard.engine import backends
from switchyard.engine.config import ModelConfig
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.memory import gpus, residency
from switchyard.engine.models import opening


@pytest.mark.parametrize(
    ("device", "there_is_one", "link"),
    [
        ("auto", True, ReplicaLink),
        ("auto", False, EngineThread),
        ("cuda", False, ReplicaLink),
        ("cpu", True, EngineThread),
    ],
)
def test_an_engine_on_a_gpu_has_a_process_of_its_own(
    model_path, monkeypatch, device, there_is_one, link
):
    monkeypatch.setattr(opening, "has_gpu", lambda: there_is_one)
    assert type(opening.open_engine(ModelConfig(model_path, "m", device))._link) is link


@pytest.mark.parametrize(("asked", "link"), [("thread", EngineThread), ("process", ReplicaLink)])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_is_asked_for_counts(model_path, device, asked, link):
    assert type(opening.open_engine(ModelConfig(model_path, "m", device, asked))._link) is link


@pytest.mark.parametrize(
    ("there", "asked", "parts"),
    [
        (4, (), [(0, 1), (2, 3)]),
        (2, (), [(0,), (1,)]),
        (3, (2, 0), [(2,), (0,)]),
    ],
)
def test_replicas_have_processes_and_an_equal_part_of_the_gpus(
    model_path, monkeypatch, there, asked, parts
):
    for name in ("gpus", "visible"):
        monkeypatch.setattr(gpus, name, lambda: [None] * there)
    config = ModelConfig(model_path, "m", "cuda", replicas=2, gpus=asked)
    replicas = opening.open_engine(config)._link._replicas
    assert [one.gpus for one in replicas] == [one.link._config.gpus for one in replicas]
    assert [one.gpus for one in replicas] == parts


def test_a_gpu_is_named_to_a_process_as_the_variable_has_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-a, ,5")
    told = gpus.environment((1, 2))
    assert told == {"CUDA_VISIBLE_DEVICES": "GPU-a,5", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("known", [0, 1, 3])
def test_gpus_that_replicas_can_not_share_equally_are_refused(there, known):
    there(known)
    with pytest.raises(
        engine.ModelError, match=f"{known} GPUs can't be divided equally among 2"
    ) as told:
        gpus.shares(ModelConfig("path", "m", "cuda", replicas=2))
    assert told.value.param == "replicas"


def test_replicas_without_gpus_have_processes(model_path):
    on_cpu = opening.open_engine(ModelConfig(model_path, "m", "cpu", replicas=2))
    assert len(on_cpu._link._replicas) == 2


class Nvml:
    """NVIDIA's library, as far as it is asked."""

    def __init__(self, number, broken=()):
        for name in ("nvmlInit_v2", "nvmlShutdown"):
            setattr(self, name, lambda name=name: 999 if name in broken else 0)
        self._number = number
        self._status = 999 if "nvmlDeviceGetCount_v2" in broken else 0

    def nvmlDeviceGetCount_v2(self, reference):
        reference._obj.value = self._number
        return self._status


@pytest.mark.parametrize(
    ("nvml", "visible", "expected"),
    [
        (Nvml(2), None, True),
        (Nvml(2), "1", True),
        (Nvml(2), "", False),
        (Nvml(2), "-1", False),
        (Nvml(0), None, False),
        (Nvml(1, ["nvmlInit_v2"]), None, False),
        (Nvml(1, ["nvmlDeviceGetCount_v2"]), None, False),
        (None, None, False),
    ],
)
def test_a_gpu_is_there_if_its_driver_says_so(monkeypatch, nvml, visible, expected):
    def load(name):
        if nvml is None:
            raise OSError("libnvidia-ml.so.1: cannot open shared object file")
        return nvml

    monkeypatch.setattr(gpus, "ctypes", SimpleNamespace(**vars(ctypes) | {"CDLL": load}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.has_gpu() is expected


GPU = gpus.Gpu("A GPU", (9, 0), 1 << 30, 1 << 30, "470.1")


@pytest.fixture
def there(monkeypatch):
    """So many GPUs that the driver knows, and that are seen by the variable `visible`."""

    def there(known, seen=None, visible=None):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(gpus, "gpus", lambda: [GPU] * known)
        monkeypatch.setattr(gpus, "visible", lambda: [GPU] * (known if seen is None else seen))
        monkeypatch.setattr(gpus, "has_gpu", lambda: known > 0)

    return there


def test_gpus_that_are_there_are_taken(there, model_path):
    there(4)
    assert opening.open_engine(ModelConfig(model_path, "m", "cuda", gpus=(3, 0)))
    assert opening.open_engine(ModelConfig(model_path, "m", gpus=(1,)))
    there(0, visible="GPU-a,GPU-b")  # NVML is hidden
    assert opening.open_engine(ModelConfig(model_path, "m", "cuda", gpus=(1,)))
    there(0)
    assert opening.open_engine(ModelConfig(model_path, "m", "cuda", gpus=(7,)))


@pytest.mark.parametrize(
    ("device", "found", "wrong", "says"),
    [
        ("cuda", (4,), (0, 4), "gpus names 4, but this process sees 4, numbered from 0"),
        ("auto", (4, 1, "2"), (1,), "gpus names 1, but this process sees 1"),
        ("cuda", (4, 0, ""), (0,), "gpus names 0, but this process sees 0"),
        ("cuda", (0, 0, "0,1"), (2,), "gpus names 2, but this process sees 2"),
        ("auto", (0,), (0,), "gpus needs GPUs, but NVML finds none"),
    ],
)
def test_gpus_that_are_not_there_end_the_start(there, model_path, device, found, wrong, says):
    there(*found)
    with pytest.raises(engine.ModelError, match=says) as caught:
        opening.open_engine(ModelConfig(model_path, "m", device, gpus=wrong))
    assert caught.value.param == "gpus"


def test_the_hosts_memory_is_told_beside_the_gpus(there):
    there(2)
    assert residency.free([1, "host"]).keys() == {1, "host"}


def test_gpus_of_shared_engines_are_theirs_to_check(there, model_path):
    there(0, visible="")
    config = ModelConfig(model_path, "m", link="socket", at=("unix:a",), gpus=(7,))
    gpus.check_gpus(config)
    assert opening.own_config(config) == ModelConfig(model_path, "m", gpus=(7,))


@pytest.mark.parametrize(
    "wrong",
    [{"gpus": (-1,)}, {"gpus": (0, 0)}, {"device": "cpu"}, {"link": "thread"}],
    ids=str,
)
def test_gpus_that_make_no_sense_are_refused(model_path, wrong):
    with pytest.raises(engine.ModelError) as caught:
        ModelConfig(model_path, "m", **{"gpus": (0,)} | wrong)
    assert caught.value.param == "gpus"


@pytest.mark.parametrize(
    ("device", "found", "cuda", "says"),
    [
        ("auto", [GPU], None, "A GPU, that torch .* can't use: it is built without CUDA"),
        ("auto", [GPU], "12.8", "the driver, 470.1, may be too old for its CUDA 12.8"),
        ("cuda", [GPU], None, "A GPU, that torch .* can't use"),
        ("cuda", [], "12.8", "device 'cuda': torch finds no CUDA device"),
    ],
)
def test_a_gpu_that_torch_can_not_use_ends_the_start(
    monkeypatch, model_path, device, found, cuda, says
):
    monkeypatch.setattr(backends, "gpus", lambda: found)
    for module in (backends, gpus):
        monkeypatch.setattr(module, "has_gpu", lambda: bool(found))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(engine.ModelError, match=says):
        backends.make_backend(ModelConfig(model_path, "name", device=device))


def test_a_gpu_that_is_hidden_from_the_process_is_none(monkeypatch, model_path):
    monkeypatch.setattr(backends, "gpus", lambda: [GPU])
    monkeypatch.setattr(backends, "has_gpu", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(engine.ModelError, match="torch finds no CUDA device"):
        backends.make_backend(ModelConfig(model_path, "name", device="cuda"))


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_where_a_cpu_is_meant_torch_warns_of_no_driver(monkeypatch, model_path, device):
    """As torch with CUDA does when it is asked; the CPU backend asks it, too."""

    def is_available():
        warnings.warn("CUDA initialization: Found no NVIDIA driver on your system.", stacklevel=2)
        return False

    with warnings.catch_warnings():
        monkeypatch.setattr(torch.cuda, "is_available", is_available)
        monkeypatch.setattr(backends, "has_gpu", lambda: False)
        assert backends._device(ModelConfig(model_path, "name", device=device)) == "cpu"
        assert not torch.cuda.is_available()


@pytest.mark.gpu
def test_a_gpu_is_seen_without_torch():
    assert gpus.has_gpu()
