"""What holds on every device."""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Sequence

from tests.conftest import ROOT
from tests.real_model.prompts import CHATS, PEOPLE, PERSON, TASKS, TEXTS, task
from tests.real_model.reference import Reference
from tests.real_model.served import Answer, Server


def perplexity(logprobs: Sequence[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


def told_by(module: str, path: str, texts: Sequence[object]) -> list[list[float]]:
    """The logprobs of texts that a library finds alone."""
    command = [sys.executable, "-m", f"tests.real_model.{module}", path]
    more = {"cwd": ROOT, "input": json.dumps(texts), "stdout": subprocess.PIPE, "text": True}
    told = subprocess.run(command, check=True, **more).stdout
    return json.loads(told[told.index("[[") :])


def check_greedy(server: Server, reference: Reference, tie: float) -> list[Answer]:
    """Each greedy token is transformers' likeliest, or less than `tie` nats from it."""
    answers, gaps = [], []
    for chat in CHATS:
        answer = server.answer(chat)
        answers.append(answer)
        prompt = server.post("/tokenize", {"messages": chat})["tokens"]
        if "<|" not in chat[-1]["content"]:  # which transformers takes for control tokens
            assert prompt == reference.prompt(chat)
        gaps += reference.gaps(prompt, answer.token_ids)
    others = [gap for gap in gaps if gap > 0]
    print(f"{len(gaps) - len(others)} of {len(gaps)} tokens are the likeliest; else {others}")
    assert len(gaps) > 1000
    assert all(gap < tie for gap in others)
    return answers


def check_together(server: Server, alone: Sequence[Answer], tie: float) -> None:
    """Forty streams at once have the texts of each alone, up to a token that is nearly a tie."""
    together = server.all_at_once(CHATS, len(CHATS))
    tokenizer = server.engine.tokenizer
    num_ties = 0
    for one, (text, finish_reason) in zip(alone, together, strict=True):
        if text == one.text:
            assert finish_reason == one.finish_reason
            continue
        ends = itertools.accumulate(len(tokenizer.piece(i)) for i in one.token_ids)
        same = len(_common(text.encode(), one.text.encode()))
        first = next(i for i, end in enumerate(ends) if end > same)
        num_ties += 1
        assert one.margins[first] < tie, (one.text, text)
    print(f"{len(alone) - num_ties} of {len(alone)} texts are the same; {num_ties} part at a tie")


def _common(one: bytes, other: bytes) -> bytes:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return bytes(byte for byte, _ in pairs)


def check_perplexities(
    server: Server, expected: Sequence[float], rel: float, texts: Sequence[str] = TEXTS
) -> None:
    found = [perplexity(server.scores(text)) for text in texts]
    print("perplexities", [round(p, 3) for p in found], "expected", [round(p, 3) for p in expected])
    for one, other in zip(found, expected, strict=True):
        assert math.isclose(one, other, rel_tol=rel)


def check_schema(server: Server) -> None:
    """A schema that the free answer meets changes nothing, and every answer is complete."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    num_right = num_free = 0
    for name, age, city in PEOPLE:
        chat = task(name, age, city)
        bound = server.answer(chat, max_tokens=80, response_format=form)
        assert bound.finish_reason == "stop"
        data = json.loads(bound.text)
        assert set(data) == set(PERSON["properties"])
        num_right += data == {"name": name, "age": age, "city": city}
        free = server.answer(chat, max_tokens=80)
        start = free.text.find("{")
        try:
            written, end = json.JSONDecoder().raw_decode(free.text[max(start, 0) :])
        except ValueError:
            continue
        if start == 0 and set(written) == set(PERSON["properties"]):
            num_free += 1
            assert bound.text == free.text[:end]
    print(f"{num_right} of {len(PEOPLE)} are right; {num_free} were so without the schema")
    assert num_right >= len(PEOPLE) - 2


def check_optional_properties(server: Server) -> None:
    """With optional properties, in another order than the prompt's, as many answers are right as
    with any object.
    """
    for name, (make, keys, rows) in TASKS.items():
        kinds = {str: {"type": "string"}, int: {"type": "integer"}}
        types = {key: kinds[type(value)] for key, value in zip(keys, rows[0], strict=True)}
        forms = {"json_object": {"type": "json_object"}}
        for order in (keys[::-1], (keys[1], keys[2], keys[0])):
            schema = {"type": "object", "properties": {key: types[key] for key in order}}
            for kind, more in (("open", {}), ("closed", {"additionalProperties": False})):
                whole = {"name": "x", "schema": schema | more}
                form = {"type": "json_schema", "json_schema": whole}
                forms[f"{kind}, {' '.join(order)}"] = form
        right = dict.fromkeys(forms, 0)
        for values in rows:
            wanted = dict(zip(keys, values, strict=True))
            for label, form in forms.items():
                answer = server.answer(make(*values), max_tokens=80, response_format=form)
                assert answer.finish_reason == "stop"
                right[label] += json.loads(answer.text) == wanted
        for label, number in right.items():
            print(f"{name:7} {label:24} {number} of {len(rows)} right")
        assert min(right.values()) >= right["json_object"] >= len(rows) // 2
