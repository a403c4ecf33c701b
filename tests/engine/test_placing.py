"""Which replica gets a job: by arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.engine.config import ModelConfig
from switchyard.engine.links.placing import max_jobs_each, page_hashes

PROMPTS = st.lists(st.integers(0, 1), max_size=12)


@given(PROMPTS, PROMPTS, st.integers(1, 4))
def test_pages_are_alike_as_far_as_all_before_them_is(one, other, size):
    ours, theirs = page_hashes(one, size), page_hashes(other, size)
    assert (len(ours), len(theirs)) == (len(one) // size, len(other) // size)
    for page in range(min(len(ours), len(theirs))):
        end = (page + 1) * size
        assert (ours[page] == theirs[page]) == (one[:end] == other[:end])


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"link": "process", "replicas": 2, "max_batch_size": 5}, 5),
        ({"link": "process", "max_batch_size": 5}, 5),
        ({"link": "socket", "at": ("unix:a", "unix:b"), "max_batch_size": 5}, 5),
        ({"link": "socket", "at": ("unix:a",), "max_batch_size": 5}, None),
        ({"link": "socket", "at": ("unix:a", "unix:b"), "replicas": 3, "max_batch_size": 5}, 15),
    ],
)
def test_each_replica_has_its_own_batch_and_one_shared_engine_any(settings, most):
    assert max_jobs_each(ModelConfig("path", "m", "cpu", **settings)) == most


def test_each_replica_of_each_shared_engine_makes_room_for_a_batch():
    config = ModelConfig(
        *("path", "m", "cpu", "socket"),
        at=("unix:a", "unix:b"),
        replicas=3,
        max_batch_size=5,
        max_pending=4,
    )
    assert config.max_jobs == 34
