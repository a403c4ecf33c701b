"""Answers with all of their fields, sums of all numbers, settings up to their bounds. Pure."""

from dataclasses import fields, replace

import pytest

from switchyard import engine
from switchyard.engine import stats
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import without_frames
from switchyard.engine.held import Tracked
from switchyard.engine.links.replica import Placed, Replica
from switchyard.engine.messages import Chunk, Finished, JobState, ModelInfo, ReplicaState, Started
from switchyard.engine.standing import Standing
from tests.engine.failing import names
from tests.scripted import job

INFO = ModelInfo(2048, 4096, 256, 64, "scripted")

# What is told


def test_all_that_is_known_of_a_job_is_told():
    more = {"request_id": "req", "owner": "key", "client": "address", "priority": 3}
    tracked = Tracked(job("a", 300, prompt=(1,) * 250, **more), submitted=5.0)
    waiting = JobState("a", "pending", 7, 250, 0, 2.5, 0, 3, "req", "key", "address")
    assert tracked.tell(7, INFO, 7.5) == waiting
    assert tracked.tell(7, None, 7.5) == waiting
    tracked.note(Started("a"))
    tracked.note(Chunk("a", "xyz", (1, 2, 3)))
    tracked.note(Chunk("a", "z", (4,)))
    told = replace(waiting, state="decode", place=None, new_tokens=4, age=3.0, num_pages=1)
    assert tracked.tell(None, INFO, 8.0) == told
    tracked.note(Chunk("a", "z", (5, 6)))  # and the next token has a place on a second page
    assert tracked.tell(None, INFO, 8.0) == replace(told, new_tokens=6, num_pages=2)


class At:
    """A link that only says where it leads."""

    at = "unix:/run/engine"
    pid = 77


def test_all_that_is_known_of_a_replica_is_told():
    replica = Replica(At, (2, 3), num_restarts=4, num_hangs=5, num_failures=6)
    replica.serve(INFO, "model")
    for name in ("started", "waiting"):
        replica.take(Placed(job(name), 0.0, ()))
    replica.jobs["started"].is_started = True
    told = ReplicaState("ready", "", 2, (2, 3), "unix:/run/engine", 77, 4, 5)
    assert replica.tell() == told
    replica.status, replica.reason = "hanging", "stuck"
    assert replica.tell() == replace(told, status="hanging", reason="stuck")


def test_the_end_of_a_job_that_never_began_has_the_length_of_its_prompt():
    placed = Placed(job("a", prompt=(1,) * 5), 0.0, ())
    assert placed.end_cancelled() == Finished("a", "cancelled", 5, 0, 0)


# Sums


def numbered(kind, times):
    """Each field is another number, so that none stands for another."""
    return kind(*(times * 10**i for i in range(len(fields(kind)))))


def test_each_number_of_several_engines_is_summed_by_itself():
    memory = [stats.DeviceMemory(f"cuda:{i}", *range(i, i + 4)) for i in range(2)]
    several = [
        stats.Stats(
            float(times),
            numbered(stats.Totals, times),
            {
                "batch_size": stats.Histogram((times, 0), 2.0 * times),
                f"only{times}": stats.Histogram((1,), 1),
            },
            numbered(stats.Work, times),
            num_active=times,
            num_pending=10 * times,
            occupancy=stats.Occupancy(100 * times, 1000 * times, (memory[times - 1],), times),
            began=50.0 + times,
        )
        for times in (1, 2)
    ]
    assert stats.together(9.0, several, 500, 7.0) == stats.Stats(
        9.0,
        numbered(stats.Totals, 3),
        {
            "batch_size": stats.Histogram((3, 0), 6.0),
            "only1": stats.Histogram((1,), 1),
            "only2": stats.Histogram((1,), 1),
        },
        numbered(stats.Work, 3),
        num_active=3,
        num_pending=530,
        occupancy=stats.Occupancy(300, 3000, tuple(memory), 3),
        began=7.0,
    )


def test_rows_that_pad_a_pass_count_as_computed_alone():
    work = stats.Work()
    work.note_pass(3, 4)
    work.note_pass(5, 8)
    assert work == stats.Work(rows=8, computed_rows=12)


def test_a_time_without_an_iteration_has_no_mean():
    standing = Standing("m")
    sizes = [{"iteration_seconds": stats.Histogram((n,), 0.5 * n)} for n in (2, 2, 6)]
    standing.note(stats.Stats(1.0, histograms=sizes[0]))
    standing.note(stats.Stats(2.0, histograms=sizes[1]))
    assert standing.rates(2.0) == stats.Rates(0.0, 0.0, None)
    standing.note(stats.Stats(3.0, histograms=sizes[2]))
    assert standing.rates(3.0).iteration_seconds == 0.5


# Refusals


def test_an_error_that_is_kept_keeps_no_frame_of_those_that_led_to_it():
    def fail():
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")  # noqa: B904
        except ValueError as reason:
            raise engine.ModelError("third") from reason

    with pytest.raises(engine.ModelError) as caught:
        fail()
    error = caught.value
    assert without_frames(error) is error
    chain = [error, error.__cause__, error.__cause__.__context__]
    assert [type(one) for one in chain] == [engine.ModelError, ValueError, KeyError]
    assert [one.__traceback__ for one in chain] == [None] * 3


# Settings


@pytest.mark.parametrize(
    "bound",
    [
        *({"cache_tokens": 256}, {"max_chunk_size": 16}, {"max_seq_len": 256}),
        *({"max_batch_size": 1}, {"max_pending_tokens": 1}, {"default_max_tokens": 1}),
        *({"max_pending": 0}, {"fair_wait_factor": 1.0}),
        {"hang_timeout": 5.0, "hang_exit": 5.0},
        *({"num_draft_tokens": 1}, {"num_draft_tokens": 7}),
        *({"gpu_reserve": 0.25}, {"gpu_split": (0.0, 1.0)}, {"gpus": (0,)}),
        *({"replicas": 2, "gpus": (3, 2, 1, 0)}, {"replicas": 2}),
        *({"default_repetition_penalty": penalty} for penalty in (0.1, 10.0)),
        *({"default_frequency_penalty": penalty} for penalty in (-2.0, 2.0)),
        {"draft_model": "d", "loras": (engine.Lora("l", "l"), engine.Lora("l", "k"))},
        {"tensor_parallel": True, "ngram_draft": True},
        {"link": "socket", "at": ("unix:/a", "unix:/b")},
    ],
    ids=str,
)
def test_a_setting_may_be_as_far_as_its_bound(bound):
    config = ModelConfig("m", "m", **bound)
    assert all(getattr(config, name) == value for name, value in bound.items())


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"max_seq_len": 255}, "max_seq_len"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 2, "link": "thread"}, "replicas"),
        ({"replicas": 2, "gpus": (0, 1, 2)}, "replicas"),
        *(({"gpus": gpus}, "gpus") for gpus in ((-1,), (0, 0))),
        *(({"gpus": (0,), **more}, "gpus") for more in ({"device": "cpu"}, {"link": "thread"})),
        ({"link": "socket"}, "at"),
        ({"at": ("unix:/a",)}, "at"),
        ({"link": "socket", "at": ("unix:/a", "unix:/a")}, "at"),
        ({"loras": (engine.Lora("l", "l"), engine.Lora("k", "l"))}, "loras"),
    ],
)
def test_settings_that_do_not_go_together_are_named(wrong, param):
    with pytest.raises(engine.ModelError, check=names(param)):
        ModelConfig("m", "m", **wrong)


def test_guesses_are_made_by_a_draft_model_or_by_n_grams():
    ways = ({}, {"ngram_draft": True}, {"draft_model": "d"})
    assert [ModelConfig("m", "m", **way).has_draft for way in ways] == [False, True, True]
