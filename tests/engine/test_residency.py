"""Which models fit at once, and which go for another: by arithmetic, on any machine."""

import ctypes
import itertools
import json
import pathlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from switchyard import engine
from switchyard.engine.backends import make_backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory import gpus, host, residency
from switchyard.engine.memory.estimate import CONTEXT, GIB
from switchyard.engine.memory.residency import Resident, fits, victims
from switchyard.engine.model.footprint import measure
from tests.conftest import DEMO

DEMO_EXL2 = f"{DEMO}-exl2"

SIZES = st.dictionaries(st.sampled_from([0, 1, "host"]), st.integers(0, 9))
RESIDENTS = st.lists(SIZES, max_size=5).flatmap(
    lambda taken: st.permutations(range(len(taken))).map(
        lambda times: [
            Resident(f"m{time}", sizes, float(time))
            for sizes, time in zip(taken, times, strict=True)
        ]
    )
)


def suffice(needed, free, gone, excess):
    room = {place: free.get(place, 0) + sum(one.taken.get(place, 0) for one in gone)
            for place in needed}  # fmt: skip
    return len(gone) >= excess and all(needed[place] <= room[place] for place in needed)


@given(SIZES, SIZES, RESIDENTS, st.integers(0, 3))
def test_of_all_that_would_do_those_go_that_spare_the_last_used(needed, free, idle, excess):
    subsets = (c for n in range(len(idle) + 1) for c in itertools.combinations(idle, n))
    enough = [gone for gone in subsets if suffice(needed, free, gone, excess)]
    found = victims(needed, free, idle, excess)
    if not enough:
        assert found is None
        return
    newest_first = sorted(idle, key=lambda one: -one.used)
    best = min(enough, key=lambda gone: [one in gone for one in newest_first])
    assert found == [one.name for one in reversed(newest_first) if one in best]
    gone = [one for one in idle if one.name in found]
    for one in gone:
        assert not suffice(needed, free, [o for o in gone if o is not one], excess)


def resident(name, used, **taken):
    """`g0=4`: 4 bytes of GPU 0."""
    places = {int(place[1:]) if place[0] == "g" else place: size for place, size in taken.items()}
    return Resident(name, places, used)


def test_the_least_recently_used_goes_first():
    idle = [resident("new", 3.0, g0=5), resident("old", 1.0, g0=5), resident("middle", 2.0, g0=5)]
    assert victims({0: 5}, {0: 0}, idle) == ["old"]
    assert victims({0: 6}, {0: 0}, idle) == ["old", "middle"]


def test_what_is_at_work_goes_behind_what_is_idle():
    busy = Resident("busy", {0: 5}, 1.0, is_busy=True)
    loaded = [busy, resident("idle", 2.0, g0=5)]
    assert victims({0: 5}, {0: 0}, loaded) == ["idle"]
    assert victims({0: 10}, {0: 0}, loaded) == ["idle", "busy"]


def test_nothing_goes_where_there_is_room():
    assert victims({0: 5}, {0: 5}, [resident("a", 1.0, g0=5)]) == []


def test_what_lies_elsewhere_or_is_too_small_to_help_stays():
    idle = [
        resident("elsewhere", 1.0, g1=9),
        resident("small", 2.0, g0=1),
        resident("big", 3, g0=9),
    ]
    assert victims({0: 9}, {0: 0}, idle) == ["big"]


def test_what_goes_makes_room_on_every_gpu_that_is_needed():
    idle = [resident("first", 1.0, g0=4), resident("both", 2.0, g0=4, g1=4)]
    assert victims({0: 4, 1: 4}, {0: 0, 1: 0}, idle) == ["both"]
    assert victims({0: 8, 1: 4}, {0: 0, 1: 0}, idle) == ["first", "both"]


def test_where_all_of_them_would_not_do_none_goes():
    idle = [resident("a", 1.0, g0=4), resident("b", 2.0, host=9)]
    assert victims({0: 5}, {0: 0}, idle) is None
    assert victims({0: 1}, {0: 9}, idle, excess=3) is None


def test_as_many_go_as_are_too_many():
    idle = [resident("old", 1.0, g1=4), resident("new", 2.0, g0=4)]
    assert victims({0: 4}, {0: 4}, idle, excess=1) == ["old"]
    assert victims({0: 4}, {0: 0}, idle, excess=1) == ["new"]  # which is one
    assert victims({0: 4}, {0: 0}, idle, excess=2) == ["old", "new"]


def test_a_place_that_is_not_there_has_no_room():
    assert fits({0: 5, "host": 2}, {0: 5, "host": 2, 1: 0})
    assert not fits({0: 5}, {1: 9})
    assert not fits({0: 5, 1: 5}, {0: 9, 1: 4})
    assert fits({}, {})


# What a model needs


def gpu(free, total=80.0):
    return gpus.Gpu("A GPU", (9, 0), int(total * GIB), int(free * GIB), "570.1")


@pytest.fixture
def there(monkeypatch):
    """GPUs of so many GiB free, of 80 or so many in all."""

    def there(*free, total=80.0):
        monkeypatch.setattr(gpus, "visible", lambda: [gpu(size, total) for size in free])
        monkeypatch.setattr(gpus, "has_gpu", lambda: bool(free))

    return there


RESERVE = GIB // 2


def placed(config, mode, tokens):
    [footprint], _ = measure(config)
    return (
        footprint.weights + footprint.cache(mode, tokens) + footprint.beside(mode, tokens)
    ) + RESERVE


def test_a_model_needs_a_context_of_cuda_and_what_its_loader_leaves_free(there):
    there(80, 80)
    config = ModelConfig(DEMO_EXL2, "m", "cuda")
    expected = {0: CONTEXT + placed(config, "float16", 16384), 1: CONTEXT}
    assert residency.needed(config) == expected


def test_it_goes_where_there_is_room_now(there):
    there(1.15, 80)
    config = ModelConfig(DEMO_EXL2, "m", "cuda")
    first, second = residency.needed(config).values()
    assert first == CONTEXT
    assert second == CONTEXT + placed(config, "float16", 16384)


def test_only_the_gpus_of_the_configuration_count(there):
    there(80, 80, 80)
    config = ModelConfig(DEMO_EXL2, "m", "cuda", gpus=(2, 0))
    assert residency.needed(config) == {2: CONTEXT + placed(config, "float16", 16384), 0: CONTEXT}
    there(80, 0.7, 80, total=1.0)
    with pytest.raises(engine.NoRoom):
        residency.needed(ModelConfig(DEMO_EXL2, "m", "cuda", gpus=(1,), cache_tokens=2**21))


def test_each_replica_needs_as_much_on_gpus_of_its_own(there):
    there(80, 80, 80, 80)
    one = residency.needed(ModelConfig(DEMO_EXL2, "m", "cuda", gpus=(2, 3)))
    two = residency.needed(ModelConfig(DEMO_EXL2, "m", "cuda", gpus=(2, 3, 0, 1), replicas=2))
    assert two == {2: one[2], 3: one[3], 0: one[2], 1: one[3]}
    with pytest.raises(engine.ModelError, match="replicas"):
        residency.needed(ModelConfig(DEMO_EXL2, "m", "cuda", replicas=3))


def test_where_there_is_none_it_needs_what_it_would_alone(there):
    there(0.7)
    config = ModelConfig(DEMO_EXL2, "m", "cuda", cache_mode=("float16", "Q4"))
    assert residency.needed(config) == {0: CONTEXT + placed(config, "Q4", 16384)}
    assert not fits(residency.needed(config), residency.free([0]))
    there(80)
    assert residency.needed(config) == {0: CONTEXT + placed(config, "float16", 16384)}


def test_an_auto_cache_needs_one_context_at_least(there):
    config = ModelConfig(DEMO_EXL2, "m", "cuda", cache_tokens="auto")
    there(80)
    assert residency.needed(config) == {0: CONTEXT + placed(config, "float16", 2048)}


def test_a_model_that_no_eviction_makes_room_for_is_refused_with_the_sums(there):
    there(0.75, total=1.0)
    with pytest.raises(engine.NoRoom, match=r"0\.1 GiB of the GPUs are free") as caught:
        residency.needed(ModelConfig(DEMO_EXL2, "m", "cuda", cache_tokens=2**22))
    assert caught.value.param == "cache_tokens"


def test_of_gpus_that_nvml_does_not_tell_nothing_is_known(there):
    there()
    for numbers in ((), (1,)):
        assert residency.needed(ModelConfig(DEMO_EXL2, "m", "cuda", gpus=numbers)) == {}


def cpu_config(path, **more):
    return ModelConfig(path, "m", "cpu", **more)


def test_the_cpu_has_weights_and_cache_in_float32(model_path):
    with safe_open(f"{model_path}/model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    weights = sum(4 * tensor.numel() for tensor in tensors.values())
    if "lm_head.weight" not in tensors:  # a copy of the embedding
        weights += 4 * tensors["model.embed_tokens.weight"].numel()
    told = json.loads(pathlib.Path(model_path, "config.json").read_text())
    token = 2 * 4 * told["num_hidden_layers"] * told["num_key_value_heads"] * told["head_dim"]
    few, many = (
        residency.needed(cpu_config(model_path, cache_tokens=tokens))["host"]
        for tokens in (256, 25600)
    )
    assert many - few == (25600 - 256) * token
    need = residency.host_need(cpu_config(model_path))
    assert need.weights == weights
    assert few == need.total(256) > weights + 256 * token
    own = residency.needed(cpu_config(model_path, cache_tokens=256, link="process"))["host"]
    assert own == few + residency.LIBRARIES
    two = residency.needed(cpu_config(model_path, cache_tokens=256, replicas=2))["host"]
    assert two == 2 * own


def test_a_draft_model_is_counted_too(model_path):
    alone = residency.needed(cpu_config(model_path))["host"]
    both = residency.needed(cpu_config(model_path, draft_model=model_path))["host"]
    assert both == 2 * alone


def test_what_the_cpu_can_not_serve_has_no_need(model_path):
    for paths in ({"path": DEMO_EXL2}, {"path": model_path, "draft_model": DEMO_EXL2}):
        with pytest.raises(engine.ModelError, match="quantized"):
            residency.needed(cpu_config(**paths))


def test_a_host_without_room_refuses_before_weights_are_read(model_path, monkeypatch):
    from switchyard.engine.backends.exl2 import cpu

    cpu.install()
    from switchyard.engine.backends.exl2.cpu import llama

    monkeypatch.setattr(llama, "read_weights", None)  # it would fail
    config = cpu_config(model_path, cache_tokens=2560)
    whole = residency.needed(config)["host"]
    monkeypatch.setattr(host, "free_memory", lambda: whole - 1)
    with pytest.raises(engine.NoRoom) as caught:
        make_backend(config).open()
    assert "GiB of weights in float32" in str(caught.value)
    assert "What would fit: cache_tokens 2304" in str(caught.value)
    monkeypatch.setattr(host, "free_memory", lambda: 2**20)
    with pytest.raises(engine.NoRoom, match="No cache would fit"):
        make_backend(config).open()


def test_what_an_earlier_model_left_to_the_allocator_counts_as_room(model_path, monkeypatch):
    config = cpu_config(model_path)
    given_back = []
    whole = residency.needed(config)["host"]
    monkeypatch.setattr(residency, "give_memory_back", lambda: given_back.append(True))
    monkeypatch.setattr(host, "free_memory", lambda: whole if given_back else 0)
    residency.check_host(config)
    assert given_back == [True]


def test_a_host_with_room_for_just_that_serves(model_path, monkeypatch):
    config = cpu_config(model_path, cache_tokens=2560)
    whole = residency.needed(config)["host"]
    monkeypatch.setattr(host, "free_memory", lambda: whole)
    backend = make_backend(config)
    assert backend.open().num_pages == 10
    backend.close()


# What is free


class Nvml:
    """NVIDIA's library over three GPUs, and a part of the first."""

    UUIDS = (b"GPU-aa11", b"GPU-ab22", b"GPU-cc33")
    MIG = b"MIG-dd44"

    def nvmlDeviceGetCount_v2(self, reference):
        reference._obj.value = len(self.UUIDS)
        return 0

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
        return lambda *_: 0


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
def test_gpus_are_those_that_this_process_sees(monkeypatch, visible, expected):
    fake = SimpleNamespace(**vars(ctypes) | {"CDLL": lambda _: Nvml()})
    monkeypatch.setattr(gpus, "ctypes", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert residency.free([0, 1, 2]) == expected
    assert residency.free([1]) == {place: size for place, size in expected.items() if place == 1}


def test_what_the_driver_tells_of_a_gpu(monkeypatch):
    """`doctor` and the choice of packages go by it."""
    fake = SimpleNamespace(**vars(ctypes) | {"CDLL": lambda _: Nvml()})
    monkeypatch.setattr(gpus, "ctypes", fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus.visible() == [gpus.Gpu("GPU 2", (8, 2), 2000, 200, "550.1")]
    assert [gpu.name for gpu in gpus.gpus()] == ["GPU 1", "GPU 2", "GPU 3"]


def system(root, available):
    """A root whose kernel calls so many KiB available."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:  {available} kB\n")


def group(folder, limit, usage, stat, names=("memory.max", "memory.current")):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip((*names, "memory.stat"), (limit, usage, stat), strict=True):
        (folder / name).write_text(f"{value}\n")


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_the_host_has_what_the_kernel_calls_available(tmp_path):
    system(tmp_path, 1000)
    assert host.free_memory(tmp_path) == 1024_000
    (tmp_path / "proc/meminfo").unlink()
    assert host.free_memory(tmp_path) > 2**60  # nothing tells


def test_a_limit_of_any_group_above_counts(tmp_path):
    system(tmp_path, 1000)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/container\n")
    v2 = tmp_path / "sys/fs/cgroup"
    group(v2 / "pod/container", "max", 5, "inactive_file 0")
    assert host.free_memory(tmp_path) == 1024_000
    group(v2 / "pod", 9000, 7000, "anon 6000\ninactive_file 500\nactive_file 100")
    assert host.free_memory(tmp_path) == 9000 - 7000 + 600
    group(v2 / "pod/container", 900, 5000, "inactive_file 0")
    assert host.free_memory(tmp_path) == 0


def test_limits_of_the_first_version_count(tmp_path):
    system(tmp_path, 1000)
    (tmp_path / "proc/self/cgroup").write_text("2:cpu:/\n4:cpu,memory:/docker/x:y\n0::/\n")
    stat = "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 0"
    # As a container sees it: its own group is the root.
    group(tmp_path / "sys/fs/cgroup/memory", 8000, 5000, stat, V1)
    assert host.free_memory(tmp_path) == 8000 - 5000 + 300
    group(tmp_path / "sys/fs/cgroup/memory/docker/x:y", 6000, 5000, stat, V1)
    assert host.free_memory(tmp_path) == 6000 - 5000 + 300


def test_this_machine_has_some_memory():
    assert 2**20 < residency.free(["host"])["host"] < 2**60
