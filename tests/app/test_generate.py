"""/generate over a scripted backend: JSON, forms, query strings, EventSource."""

import dataclasses
import errno
import io
import json

import pytest

from switchyard.app.formats.plain.parse import generate
from tests.app.conftest import fails
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

URL = "/generate"
FORM = "application/x-www-form-urlencoded"
PAGE = "https://page.example"


def events(response):
    """(name, data) of each server-sent event, as an EventSource would dispatch it."""
    for block in response.get_data(as_text=True).split("\n\n"):
        fields = [line.partition(": ")[::2] for line in block.splitlines() if line[0] != ":"]
        if fields:
            lines = dict(fields)
            yield lines.get("event", "message"), json.loads(lines["data"])


def test_a_priority_of_0_is_asked_for_and_no_keys_own():
    assert generate({"prompt": "x", "priority": 0}).asked_priority == 0
    assert generate({"prompt": "x"}).asked_priority is None


@pytest.mark.parameter("prompt", "/generate")
def test_a_text_comes_with_its_end_and_usage(make_client):
    body = make_client().post(URL, json={"prompt": "x", "max_tokens": 3}).json
    assert body.pop("id").startswith("gen-")
    assert body.pop("usage")["completion_tokens"] == 3
    assert body == {"model": "scripted", "text": "0 1 2 ", "finish_reason": "length"}


def test_a_text_is_as_long_as_the_server_lets_it_be_by_default(make_client):
    client = make_client(default_max_tokens=7)
    assert client.post(URL, json={"prompt": "x"}).json["usage"]["completion_tokens"] == 7


# (as a form has it, as JSON has it); None: as the default
VALUES = {
    "prompt": ("123", "123"),
    "max_tokens": ("3", 3),
    "temperature": ("0.5", 0.5),
    "ignore_eos": ("on", True),
    "stop": (["7, 9", "8"], ["7, 9", "8"]),
    "stop_token_ids": (["5", "6"], [5, 6]),
    "banned_token_ids": ("7, 8", [7, 8]),
    "allowed_tokens": (["5", "9"], [5, 9]),
    "seed": ("-4", -4),
    "min_p": ("", None),
    "user": ("true", "true"),
    "stream": ("false", None),
    "store": ("false", None),
}


@pytest.mark.parametrize("accept", ["text/plain", "application/x-ndjson"])
def test_space_is_text_wherever_it_comes(make_client, accept):
    client = make_client(ScriptedBackend(says(" ", "a", "\n", "b", " ")))
    response = client.post(URL, json={"prompt": "x", "stream": True}, headers={"Accept": accept})
    lines = [response.text]
    if accept != "text/plain":
        lines = [json.loads(line).get("text", "") for line in response.text.splitlines()]
    assert "".join(lines) == " a\nb "


@pytest.mark.parametrize("how", ["form", "multipart", "query"])
def test_strings_mean_what_the_same_json_means(client, how):
    strings = {name: text for name, (text, _) in VALUES.items()}
    values = {name: value for name, (_, value) in VALUES.items() if value is not None}
    more = {"headers": {"X-Request-Id": "same"}}
    client.post(URL, json=values, **more)
    match how:
        case "form":
            response = client.post(URL, data=strings, **more)
        case "multipart":
            response = client.post(URL, data=strings, content_type="multipart/form-data", **more)
        case "query":
            response = client.get(URL, query_string=strings, **more)
    assert response.status_code == 200, response.json
    by_json, by_strings = client.backend.enqueued
    assert dataclasses.replace(by_strings, identifier=by_json.identifier) == by_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", "True", "TRUE", "on", "On", "yes", "YES")),
        *((text, False) for text in ("false", "False", "FALSE", "off", "Off", "no", "NO")),
    ],
)
def test_yes_and_no_have_the_words_of_forms_in_any_case(client, text, value):
    assert client.get(f"{URL}?prompt=x&ignore_eos={text}").status_code == 200
    assert client.backend.enqueued[-1].ignore_eos is value


MANY = "&".join(f"a{i}=1" for i in range(200))
OPTIONS = 'stream=true&stream_options={"continuous_usage_stats":true}'


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("max_tokens=3", "prompt", "missing_required_parameter"),
        ("prompt=", "prompt", "missing_required_parameter"),
        ("prompt=x&temperature=hot", "temperature", "invalid_value"),
        ("prompt=x&temperature=9", "temperature", "invalid_value"),
        ("prompt=x&max_tokens=2.5", "max_tokens", "invalid_value"),
        ("prompt=x&max_tokens=[[[", "max_tokens", "invalid_value"),
        ("prompt=x&ignore_eos=7", "ignore_eos", "invalid_value"),
        ("prompt=x&prompt=y", "prompt", "invalid_value"),
        ("prompt=x&stop_token_ids=a", "stop_token_ids.0", "invalid_value"),
        ("prompt=x&n=2", "n", "unsupported_parameter"),
        ("prompt=x&temprature=1", "temprature", "unknown_parameter"),
        ("prompt=x&service_tier=priority", "service_tier", "unsupported_parameter"),
        ("prompt=x&messages=[]", "messages", "unknown_parameter"),
        (f"prompt=x&{OPTIONS}", "stream_options", "unsupported_parameter"),
        ("prompt=%ff", None, "invalid_query"),
        (MANY, None, "invalid_query"),
    ],
)
def test_what_is_wrong_in_a_query_is_named(make_client, query, param, code):
    error = error_of(make_client().get(f"{URL}?{query}"))
    assert (error["param"], error["code"]) == (param, code)


MULTIPART = "multipart/form-data"


def test_what_is_no_form_is_refused(make_client):
    client = make_client(max_body_bytes=1000)
    for data, kind, status in (
        (b"prompt=%ff", FORM, 400),
        (b"a=&" * 150, FORM, 400),
        (b"x" * 2000, FORM, 413),
        (b"x", "text/plain", 415),
        ({"prompt": "x" * 2000}, MULTIPART, 413),
    ):
        error = error_of(client.post(URL, data=data, content_type=kind), status)
        assert status != 400 or error["code"] == "invalid_body"
    file = client.post(URL, data={"prompt": "x", "image": (io.BytesIO(b"x"), "image")})
    assert error_of(file)["param"] == "image"


def test_a_field_of_very_many_values_is_not_taken_apart(client, monkeypatch):
    many = "[" + "5," * 100_001 + "5]"
    monkeypatch.setattr("switchyard.app.http.form.json", None)
    response = client.post(URL, data={"prompt": "x", "stop_token_ids": many})
    assert error_of(response)["param"] == "stop_token_ids.0"


def test_a_file_is_refused_before_it_is_stored(make_client, monkeypatch):
    """Where there is no room on a disk, it would be an error of the server."""

    def no_room(*args, **more):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", no_room)
    for name in ("SpooledTemporaryFile", "TemporaryFile"):
        monkeypatch.setattr(f"werkzeug.formparser.{name}", no_room, raising=False)
    data = b'--b\r\nContent-Disposition: form-data; name="image"; filename="i"\r\n\r\n'
    data += b"x" * 600_000 + b"\r\n--b--\r\n"
    file = make_client().post(URL, data=data, content_type=f"{MULTIPART}; boundary=b")
    assert error_of(file)["param"] == "image"


PART = "form-data; name=a\r\n\r\nx"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["form-data\r\n\r\nx"], "no name"),
        ([PART, "form-data\r\n\r\nx"], "no name"),
        (['form-data; filename="f"\r\n\r\nx'], "is a file"),
        ([PART] * 201, "100"),
        (["form-data; name=prompt"], "can't be read"),
    ],
    ids=["nameless", "nameless second", "nameless file", "many", "cut off"],
)
def test_parts_that_are_none_are_refused(make_client, parts, message):
    data = "".join(f"--b\r\nContent-Disposition: {part}\r\n" for part in parts) + "--b--\r\n"
    response = make_client().post(URL, data=data, content_type=f"{MULTIPART}; boundary=b")
    assert message in error_of(response)["message"]


def test_an_event_source_reads_the_text_and_learns_of_the_end(client):
    query = {"prompt": "x", "max_tokens": 2, "stream": "true"}
    response = client.get(URL, query_string=query, headers={"Accept": "text/event-stream"})
    assert response.mimetype == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-store"
    *texts, (name, end) = events(response)
    assert texts == [("message", {"text": "0 "}), ("message", {"text": "1 "})]
    assert name == "end"
    assert (end["finish_reason"], end["usage"]["completion_tokens"]) == ("length", 2)
    [identifier] = [line for line in response.text.splitlines() if line.startswith("id: gen-")]
    again = client.get(URL, query_string=query, headers={"Last-Event-ID": identifier[4:]})
    assert (again.status_code, again.data) == (204, b"")  # it gives up


def test_a_failure_ends_the_events(make_client):
    response = make_client(ScriptedBackend(fails("0 "))).get(f"{URL}?prompt=x&stream=true")
    assert [name for name, _ in events(response)] == ["message", "error"]
    assert response.text.count("id: ") == 1


@pytest.mark.parametrize(
    ("accept", "body"),
    [
        ("text/plain", b"0 1 "),
        ("application/x-ndjson", b'{"text":"0 "}\n{"text":"1 "}\n{"finish_reason":"length",'),
    ],
)
def test_the_other_framings(make_client, accept, body):
    asked = {"prompt": "x", "max_tokens": 2, "stream": True}
    assert make_client().post(URL, json=asked, headers={"Accept": accept}).data.startswith(body)


def test_a_head_request_generates_nothing(client):
    assert client.head(f"{URL}?prompt=x").status_code == 405
    assert not client.backend.enqueued


@pytest.mark.parameter("parse_special", "/generate")
def test_special_tokens_in_a_prompt_count_only_if_asked(client):
    token, token_id = next(iter(client.models.get().tokenizer.tag_ids.items()))
    for parse_special in (False, True):
        client.post(URL, json={"prompt": f"x{token}", "parse_special": parse_special})
    literal, parsed = [job.prompt for job in client.backend.enqueued]
    assert parsed[-1] == token_id and token_id not in literal


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *(({"Origin": origin}, 403) for origin in (PAGE, "null")),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({}, 200),
        ({"Origin": "https://localhost"}, 200),
        # Named by its origin.
        ({"Origin": "https://localhost", "Sec-Fetch-Site": "cross-site"}, 200),
        *(({"Sec-Fetch-Site": site}, 200) for site in ("none", "same-origin", "same-site")),
    ],
    ids=str,
)
def test_its_own_pages_and_what_is_no_page_can_make_it_do_something(client, headers, status):
    response = client.get(f"{URL}?prompt=x", headers=headers)
    assert response.status_code == status
    assert "Access-Control-Allow-Origin" not in response.headers
    assert client.post(URL, data={"prompt": "x"}, headers=headers).status_code == status
    assert len(client.backend.enqueued) == (0 if status == 403 else 2)


@pytest.mark.parametrize("origins", [[PAGE], ["*"]])
def test_pages_that_the_configuration_names_can_and_may_read_it(make_client, origins):
    client = make_client(cors_origins=origins)
    response = client.get(f"{URL}?prompt=x", headers={"Origin": PAGE})
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert response.headers["Vary"] == "Origin"
    asked = {"Origin": PAGE, "Access-Control-Request-Headers": "content-type"}
    preflight = client.options("/v1/chat/completions", headers=asked)
    assert preflight.headers["Access-Control-Allow-Headers"] == "content-type"
    assert preflight.headers["Access-Control-Allow-Origin"] == PAGE
    if origins != ["*"]:
        other = client.get("/v1/models", headers={"Origin": "https://other.example"})
        assert "Access-Control-Allow-Origin" not in other.headers
        assert other.headers["Vary"] == "Origin"
