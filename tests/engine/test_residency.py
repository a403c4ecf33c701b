"""Which models fit at once, and which go for another: by arithmetic, on any machine."""

import itertools
import json
import pathlib

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
from tests.engine.failing import names

DEMO_EXL2 = f"{DEMO}-exl2"

SIZES = st.dictionaries(st.sampled_from([0, 1, "host"]), st.integers(0, 9))
RESIDENTS = st.lists(st.tuples(SIZES, st.booleans()), max_size=5).flatmap(
    lambda taken: st.permutations(range(len(taken))).map(
        lambda times: [
            Resident(f"m{time}", sizes, float(time), is_busy)
            for (sizes, is_busy), time in zip(taken, times, strict=True)
        ]
    )
)


def suffice(needed, free, gone, excess):
    room = {place: free.get(place, 0) + sum(one.taken.get(place, 0) for one in gone)
            for place in needed}  # fmt: skip
    return len(gone) >= excess and all(needed[place] <= room[place] for place in needed)


@given(SIZES, SIZES, RESIDENTS, st.integers(0, 3))
def test_of_all_that_would_do_those_go_that_spare_busy_and_last_used(needed, free, loaded, excess):
    subsets = (c for n in range(len(loaded) + 1) for c in itertools.combinations(loaded, n))
    enough = [gone for gone in subsets if suffice(needed, free, gone, excess)]
    found = victims(needed, free, loaded, excess)
    if not enough:
        assert found is None
        return
    last = sorted(loaded, key=lambda one: (not one.is_busy, -one.used))
    best = min(enough, key=lambda gone: [one in gone for one in last])
    assert found == [one.name for one in reversed(last) if one in best]
    gone = [one for one in loaded if one.name in found]
    for one in gone:
        assert not suffice(needed, free, [o for o in gone if o is not one], excess)


def test_a_place_that_is_not_there_has_no_room():
    assert fits({0: 5, "host": 2}, {0: 5, "host": 2, 1: 0})
    assert not fits({0: 5}, {1: 9})
    assert not fits({0: 5, 1: 5}, {0: 9, 1: 4})
    assert fits({}, {})


# What a model needs


@pytest.fixture
def there(monkeypatch):
    """GPUs of so many GiB free, of 80 or so many in all."""

    def there(*free, total=80.0):
        found = [gpus.Gpu("A GPU", (9, 0), int(total * GIB), int(n * GIB), "570.1") for n in free]
        monkeypatch.setattr(gpus, "visible", lambda: found)
        monkeypatch.setattr(gpus, "has_gpu", lambda: bool(free))

    return there


def of_gpu(**more):
    return ModelConfig(DEMO_EXL2, "m", "cuda", **more)


def placed(mode, tokens):
    """Bytes of the model with such a cache; of none, only those of CUDA."""
    if mode is None:
        return CONTEXT
    [footprint], _ = measure(of_gpu())
    sizes = footprint.weights, footprint.cache(mode, tokens), footprint.beside(mode, tokens)
    return CONTEXT + sum(sizes) + GIB // 2


WHOLE, NONE = ("float16", 16384), (None, 0)


@pytest.mark.parametrize(
    ("free", "config", "needed"),
    [
        ((80, 80), {}, {0: WHOLE, 1: NONE}),
        ((1.15, 80), {}, {0: NONE, 1: WHOLE}),
        ((80, 80, 80), {"gpus": (2, 0)}, {2: WHOLE, 0: NONE}),
        ((80,), {"cache_tokens": "auto"}, {0: ("float16", 2048)}),
        ((80,), {"cache_mode": ("float16", "Q4")}, {0: WHOLE}),
        ((0.7,), {"cache_mode": ("float16", "Q4")}, {0: ("Q4", 16384)}),  # once others have gone
        ((), {}, {}),
        ((), {"gpus": (1,)}, {}),
    ],
    ids=str,
)
def test_a_model_needs_contexts_of_cuda_and_room_for_itself_on_gpus(there, free, config, needed):
    there(*free)
    expected = {place: placed(*cache) for place, cache in needed.items()}
    assert residency.needed(of_gpu(**config)) == expected


@pytest.mark.parametrize(
    ("free", "config", "told"),
    [
        ((0.75,), {"cache_tokens": 2**22}, r"0\.1 GiB of the GPUs are free"),
        ((80, 0.7, 80), {"gpus": (1,), "cache_tokens": 2**21}, "of the GPUs are free"),
    ],
    ids=["all", "its own"],
)
def test_a_model_that_no_eviction_makes_room_for_is_refused_with_sums(there, free, config, told):
    there(*free, total=1.0)
    with pytest.raises(engine.NoRoom, match=told, check=names("cache_tokens")):
        residency.needed(of_gpu(**config))


def test_each_replica_needs_as_much_on_gpus_of_its_own(there):
    there(80, 80, 80, 80)
    one = residency.needed(of_gpu(gpus=(2, 3)))
    two = residency.needed(of_gpu(gpus=(2, 3, 0, 1), replicas=2))
    assert two == {2: one[2], 3: one[3], 0: one[2], 1: one[3]}


def test_the_cpu_has_weights_and_cache_in_float32(model_path):
    def needed(**more):
        config = ModelConfig(model_path, "m", "cpu", **{"cache_tokens": 256, **more})
        return residency.needed(config)["host"]

    with safe_open(f"{model_path}/model.safetensors", framework="pt") as file:
        weights = sum(4 * file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    told = json.loads(pathlib.Path(model_path, "config.json").read_text())
    token = 2 * 4 * told["num_hidden_layers"] * told["num_key_value_heads"] * told["head_dim"]
    few = needed()
    assert needed(cache_tokens=25600) - few == (25600 - 256) * token
    need = residency.host_need(ModelConfig(model_path, "m", "cpu"))
    assert need.weights == weights
    assert few == need.total(256) > weights + 256 * token
    assert needed(draft_model=model_path) == 2 * few
    own = needed(link="process")
    assert (own, needed(replicas=2)) == (few + residency.LIBRARIES, 2 * own)


def test_what_the_cpu_can_not_serve_has_no_need(model_path):
    for paths in ({"path": DEMO_EXL2}, {"path": model_path, "draft_model": DEMO_EXL2}):
        with pytest.raises(engine.ModelError, match="quantized"):
            residency.needed(ModelConfig(name="m", device="cpu", **paths))


def test_a_host_without_room_refuses_before_weights_are_read(model_path, monkeypatch):
    from switchyard.engine.backends.exl2 import cpu

    cpu.install()
    from switchyard.engine.backends.exl2.cpu import llama

    config = ModelConfig(model_path, "m", "cpu", cache_tokens=2560)
    whole = residency.needed(config)["host"]
    given_back = []
    monkeypatch.setattr(residency, "give_memory_back", lambda: given_back.append(True))
    monkeypatch.setattr(host, "free_memory", lambda: whole if given_back else 0)
    backend = make_backend(config)
    assert backend.open().num_pages == 10  # with what an earlier model left to the allocator
    backend.close()
    assert given_back == [True]
    monkeypatch.setattr(llama, "read_weights", None)  # it would fail
    fit = "GiB of weights in float32.* What would fit: cache_tokens 2304"
    for free, told in ((whole - 1, fit), (2**20, "No cache would fit")):
        monkeypatch.setattr(host, "free_memory", lambda free=free: free)
        with pytest.raises(engine.NoRoom, match=told):
            make_backend(config).open()


def groups(root, own, files):
    """A root whose kernel calls 1000 KiB available, and cgroups: limit, usage and statistics."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:  1000 kB\n")
    if own:
        (root / "proc/self/cgroup").write_text(own)
    for folder, told in files.items():
        path = root / "sys/fs/cgroup" / folder
        path.mkdir(parents=True, exist_ok=True)
        v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        names = v1 if folder.startswith("memory") else ("memory.max", "memory.current")
        for name, value in zip((*names, "memory.stat"), told, strict=True):
            (path / name).write_text(f"{value}\n")


V2, INNER, NOTHING = "0::/pod/container\n", "pod/container", "inactive_file 0"
POD = {"pod": (9000, 7000, "anon 6000\ninactive_file 500\nactive_file 100")}
V1 = "2:cpu:/\n4:cpu,memory:/docker/x:y\n0::/\n"
STAT = "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 0"
OUTER = {"memory": (8000, 5000, STAT)}  # as a container sees it: its own group is the root


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        (None, {}, 1024_000),
        (V2, {INNER: ("max", 5, NOTHING)}, 1024_000),
        (V2, {INNER: ("max", 5, NOTHING), **POD}, 9000 - 7000 + 600),
        (V2, {INNER: (900, 5000, NOTHING), **POD}, 0),
        (V1, OUTER, 8000 - 5000 + 300),
        (V1, {**OUTER, "memory/docker/x:y": (6000, 5000, STAT)}, 6000 - 5000 + 300),
    ],
)
def test_the_host_has_what_the_kernel_and_all_groups_above_leave(tmp_path, own, files, free):
    groups(tmp_path, own, files)
    assert host.free_memory(tmp_path) == free


def test_where_no_limit_is_known_there_is_none(tmp_path):
    assert host.free_memory(tmp_path) > 2**60
    assert 2**20 < residency.free(["host"])["host"] < 2**60  # of this machine
