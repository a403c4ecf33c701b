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
from tests.engine.failing import names


@pytest.mark.parametrize(
    ("device", "there_is_one", "link"),
    [
        ("auto", True, ReplicaLink),
        ("auto", False, EngineThread),
        ("cuda", False, ReplicaLink),
        ("cpu", True, EngineThread),
    ],
)
def test_an_engine_on_a_gpu_is_a_process(model_path, monkeypatch, device, there_is_one, link):
    monkeypatch.setattr(opening, "has_gpu", lambda: there_is_one)
    assert type(opening.open_engine(ModelConfig(model_path, "m", device))._link) is link


@pytest.mark.parametrize(("asked", "link"), [("thread", EngineThread), ("process", ReplicaLink)])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_is_asked_for_counts(model_path, device, asked, link):
    assert type(opening.open_engine(ModelConfig(model_path, "m", device, asked))._link) is link


@pytest.mark.parametrize(
    ("device", "known", "asked", "parts"),
    [
        ("cuda", 4, (), [(0, 1), (2, 3)]),
        ("cuda", 2, (), [(0,), (1,)]),
        ("cuda", 3, (2, 0), [(2,), (0,)]),
        ("cpu", 0, (), [(), ()]),
    ],
)
def test_replicas_have_processes_and_an_equal_part_of_the_gpus(
    there, model_path, device, known, asked, parts
):
    there(known)
    config = ModelConfig(model_path, "m", device, replicas=2, gpus=asked)
    replicas = opening.open_engine(config)._link._replicas
    assert [one.gpus for one in replicas] == [one.link._config.gpus for one in replicas] == parts


def test_a_gpu_is_named_to_a_process_as_the_variable_has_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-a, ,5")
    told = gpus.environment((1, 2))
    assert told == {"CUDA_VISIBLE_DEVICES": "GPU-a,5", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("known", [0, 1, 3])
def test_gpus_that_replicas_can_not_share_equally_are_refused(there, known):
    there(known)
    says = f"{known} GPUs can't be divided equally among 2"
    with pytest.raises(engine.ModelError, match=says, check=names("replicas")):
        gpus.shares(ModelConfig("path", "m", "cuda", replicas=2))


class Nvml:
    """NVIDIA's library over so many GPUs, and a part of the first."""

    UUIDS = (b"GPU-aa11", b"GPU-ab22", b"GPU-cc33")
    MIG = b"MIG-dd44"

    def __init__(self, number=3, broken=None):
        self._number, self._broken = number, broken

    def nvmlDeviceGetCount_v2(self, reference):
        reference._obj.value = self._number
        return 999 * (self._broken == "nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex_v2(self, index, reference):
        reference._obj.value = index.value + 1

    def nvmlDeviceGetHandleByUUID(self, uuid, reference):
        reference._obj.value = 9
        return 0 if uuid == self.MIG else 6

    def nvmlDeviceGetUUID(self, device, buffer, _):
        buffer.value = self.UUIDS[device.value - 1]

    def nvmlDeviceGetMemoryInfo(self, device, reference):
        reference._obj.free = 100 * device.value
        reference._obj.total = 1000 * device.value

    def nvmlDeviceGetName(self, device, buffer, _):
        buffer.value = f"GPU {device.value}".encode()

    def nvmlDeviceGetCudaComputeCapability(self, device, major, minor):
        major._obj.value, minor._obj.value = 8, device.value

    def nvmlSystemGetDriverVersion(self, buffer, _):
        buffer.value = b"550.1"

    def __getattr__(self, name):
        return lambda *_: 999 * (name == self._broken)


@pytest.fixture
def nvml(monkeypatch):
    """That library, or none, and the variable."""

    def nvml(library, visible=None):
        def load(name):
            if library is None:
                raise OSError(f"{name}: cannot open shared object file")
            return library

        monkeypatch.setattr(gpus, "ctypes", SimpleNamespace(**vars(ctypes) | {"CDLL": load}))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return nvml


@pytest.mark.parametrize(
    ("library", "visible", "expected"),
    [
        (Nvml(2), None, True),
        (Nvml(2), "1", True),
        (Nvml(2), "", False),
        (Nvml(2), "-1", False),
        (Nvml(0), None, False),
        (Nvml(1, "nvmlInit_v2"), None, False),
        (Nvml(1, "nvmlDeviceGetCount_v2"), None, False),
        (None, None, False),
    ],
)
def test_a_gpu_is_there_if_its_driver_says_so(nvml, library, visible, expected):
    nvml(library, visible)
    assert gpus.has_gpu() is expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {0: 100, 1: 200, 2: 300}),
        ("", {}),
        ("-1", {}),
        ("2,0", {0: 300, 1: 100}),
        ("1, 7, 0", {0: 200}),  # nothing behind one that isn't there
        ("GPU-cc33,GPU-ab", {0: 300, 1: 200}),
        ("MIG-dd44", {0: 900}),
        ("MIG-none,0", {}),
        ("what", {}),
    ],
)
def test_gpus_are_those_that_this_process_sees(nvml, visible, expected):
    nvml(Nvml(), visible)
    assert residency.free([0, 1, 2]) == expected
    assert residency.free([1]) == {place: size for place, size in expected.items() if place == 1}


def test_what_the_driver_tells_of_a_gpu(nvml):
    """`doctor` and the choice of packages go by it."""
    nvml(Nvml(), "1")
    assert gpus.visible() == [gpus.Gpu("GPU 2", (8, 2), 2000, 200, "550.1")]
    assert [gpu.name for gpu in gpus.gpus()] == ["GPU 1", "GPU 2", "GPU 3"]


HIDDEN = "torch finds no CUDA device"  # for a GPU that the process may not see
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
    with pytest.raises(engine.ModelError, match=says, check=names("gpus")):
        opening.open_engine(ModelConfig(model_path, "m", device, gpus=wrong))


def test_the_hosts_memory_is_told_beside_the_gpus(there):
    there(2)
    assert residency.free([1, "host"]).keys() == {1, "host"}


def test_gpus_of_shared_engines_are_theirs_to_check(there, model_path):
    there(0, visible="")
    config = ModelConfig(model_path, "m", link="socket", at=("unix:a",), gpus=(7,))
    gpus.check_gpus(config)
    assert opening.own_config(config) == ModelConfig(model_path, "m", gpus=(7,))


@pytest.mark.parametrize(
    ("device", "found", "cuda", "says"),
    [
        ("auto", [GPU], None, "A GPU, that torch .* can't use: it was built without CUDA"),
        ("auto", [GPU], "12.8", "the driver, 470.1, may be too old for torch's CUDA 12.8"),
        ("cuda", [GPU], None, "A GPU, that torch .* can't use"),
        ("cuda", [], "12.8", "device 'cuda': torch finds no CUDA device"),
        ("cuda", [GPU], None, HIDDEN),
    ],
)
def test_a_gpu_that_torch_can_not_use_ends_it(monkeypatch, model_path, device, found, cuda, says):
    monkeypatch.setattr(backends, "gpus", lambda: found)
    is_seen = bool(found) and says != HIDDEN
    for module in (backends, gpus):
        monkeypatch.setattr(module, "has_gpu", lambda: is_seen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(engine.ModelError, match=says):
        backends.make_backend(ModelConfig(model_path, "name", device=device))


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
