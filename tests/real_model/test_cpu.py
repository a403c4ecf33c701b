"""The real model on the CPU writes what transformers' float32 would."""

import pytest

from tests.real_model import checks
from tests.real_model.prompts import TEXTS
from tests.real_model.served import Server

pytestmark = pytest.mark.hardship

TIE = 0.02  # nats


@pytest.fixture(scope="module")
def server(path):
    settings = {"cache_tokens": 65536, "max_seq_len": 4096, "max_batch_size": 40}
    server = Server(path, device="cpu", **settings)
    yield server
    server.close()


@pytest.fixture(scope="module")
def alone(server, reference):
    return checks.check_greedy(server, reference, TIE)


def test_greedy_tokens_are_the_likeliest(alone):
    assert {answer.finish_reason for answer in alone} == {"stop", "length"}


def test_logprobs_are_those_of_transformers(server, reference):
    for text in TEXTS:
        token_ids = reference.tokenizer(text, add_special_tokens=False)["input_ids"]
        scores = server.scores(text)
        assert scores == pytest.approx(reference.scores(token_ids), abs=2e-3)


def test_forty_chats_at_once_have_the_texts_of_each_alone(server, alone):
    checks.check_together(server, alone, TIE)


def test_a_schema_that_the_free_answer_meets_changes_nothing(server):
    checks.check_schema(server)


def test_optional_properties_in_another_order_than_the_prompts_change_no_answer(server):
    checks.check_optional_properties(server)
