"""Bodies that are no JSON, too large, or have too many values."""

import gzip
import io
import json

import pytest

from tests.app.refused import CHAT, COMPLETIONS, error_of
from tests.growth import assert_within

CURLS = "application/x-www-form-urlencoded"  # curl's, of what `-d` gives

JSON = "application/json"
SHORT = b'{"prompt": "x", "max_tokens": 1}'


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b'"x"', b'{"prompt": "x"', b"[" * 100_000),
        *(b'{"prompt": "\xff\xfe"}', b'{"prompt": "\\ud800"}'),
        b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(make_client, data):
    error = error_of(make_client().post(COMPLETIONS, data=data, content_type=JSON))
    assert (error["param"], error["code"]) == (None, "invalid_json")


@pytest.mark.parametrize(
    ("mark", "content_type"),
    [(b"\xef\xbb\xbf", JSON), (b"", "application/vnd.x+json"), (b"", "")],
)
def test_json_may_have_any_of_its_names_and_a_byte_order_mark(make_client, mark, content_type):
    response = make_client().post(COMPLETIONS, data=mark + SHORT, content_type=content_type)
    assert response.status_code == 200


def values(number):
    """A body of that many."""
    return b'{"prompt": [' + b"5," * (number - 3) + b"5]}"


@pytest.mark.parametrize("max_body_bytes", [1 << 20, 1 << 21])
def test_a_body_of_more_values_than_a_use_has_is_refused(make_client, monkeypatch, max_body_bytes):
    client = make_client(max_body_bytes=max_body_bytes)
    limit = max(100_000, max_body_bytes // 10)

    def post(data):
        return error_of(client.post(COMPLETIONS, data=data, content_type=JSON))

    assert post(values(limit))["code"] == "context_length_exceeded"
    monkeypatch.setattr("pydantic_core.from_json", None)
    for data in (
        values(limit + 2),
        b"[" * (limit + 1),
        b"{" * (limit + 1),
        b'["' + b'","' * (limit + 1),
        b'"' * (4 * limit + 1) + b"," * (limit + 1),
    ):
        assert str(limit) in post(data)["message"], data[:20]


@pytest.mark.parametrize("text", [",[{", '",[{', "\\,[", '\\",{', "\\\\\\,", '\\\\"[', '"'])
def test_what_a_text_has_of_commas_and_brackets_is_free(client, text):
    body = {"stop": ["\\"], "prompt": [1], "user": (text + ",,,,") * 50_000, "max_tokens": 1}
    assert client.post(COMPLETIONS, json=body).status_code == 200


@pytest.mark.one_way
@pytest.mark.parametrize(
    "body",
    [
        lambda n: {"prompt": [1.5] * n},
        lambda n: {"prompt": [5] * n},
        lambda n: {"prompt": [[5]] * (n // 2)},
        lambda n: {"prompt": "x", "stop": ["x"] * n},
        lambda n: {f"a{i}": 0 for i in range(n)},
        lambda n: {"messages": [{"role": "user", "content": [5] * n}]},
        lambda n: {"prompt": 'x\n"' * n},
    ],
    ids=["floats", "ids", "lists", "stop", "names", "parts", "text"],
)
def test_a_body_of_twice_the_values_takes_about_twice_the_time(client, body):
    def post(number):
        data = json.dumps(body(number)).encode()
        url = CHAT if b"messages" in data[:20] else COMPLETIONS
        return lambda: error_of(client.post(url, data=data, content_type=JSON))

    assert_within(3, post(80_000), post(40_000))


def test_another_content_type_is_refused(client):
    error = error_of(client.post(COMPLETIONS, data={"prompt": "x"}), 415)
    assert JSON in error["message"]
    assert error_of(client.post(COMPLETIONS, data=b"{}"))["param"] == "prompt"  # without one
    assert error_of(client.post(COMPLETIONS, data=b"prompt"))["code"] == "invalid_json"
    page = {"Origin": "https://example.org"}  # of which a browser asks nobody
    error_of(client.post(COMPLETIONS, data=b'{"prompt": "x"}', headers=page), 403)


@pytest.mark.parametrize("url", [COMPLETIONS, "/generate", "/completion"])
@pytest.mark.parametrize(
    ("data", "kind", "headers", "is_taken"),
    [
        (b'{"prompt": "x"}', CURLS, {}, True),
        (b'\n  {"prompt": "x"}', CURLS + "; charset=utf-8", {}, True),
        *((SHORT, CURLS, {"Origin": origin}, False) for origin in ("http://localhost", "null")),
        *((SHORT, CURLS, {"Sec-Fetch-Site": f"{who}-site"}, False) for who in ("same", "cross")),
        (SHORT, CURLS, {"Sec-Fetch-Site": "same-origin"}, False),
        (SHORT, "text/plain", {}, False),
        (b'["prompt"]', CURLS, {}, False),
    ],
)
def test_json_is_taken_as_curl_sends_it_and_never_from_a_page(
    client, url, data, kind, headers, is_taken
):
    response = client.post(url, data=data, content_type=kind, headers=headers)
    # /generate reads the others as forms, which lack a prompt
    refusals = (400, 403, 415) if url == "/generate" else (415,)
    assert response.status_code in ((200,) if is_taken else refusals), response.text
    assert len(client.backend.enqueued) == is_taken


CHUNKED = {"wsgi.input_terminated": True, "CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}


@pytest.mark.parametrize("environ", [{}, CHUNKED], ids=["whole", "in chunks"])
@pytest.mark.parametrize(("length", "status"), [(1000, 200), (1001, 413)])
def test_a_body_over_the_limit_is_refused(make_client, environ, length, status):
    more = {"content_type": JSON, "environ_overrides": environ}
    data = io.BytesIO(SHORT.ljust(length))
    response = make_client(max_body_bytes=1000).post(COMPLETIONS, data=data, **more)
    assert response.status_code == status
    assert status == 200 or "1000 bytes" in error_of(response, 413)["message"]


def test_a_compressed_body_is_refused_by_its_coding(client):
    headers = {"Content-Encoding": "gzip", "Content-Type": JSON}
    error = error_of(client.post(COMPLETIONS, data=gzip.compress(SHORT), headers=headers), 415)
    assert "Content-Encoding: gzip" in error["message"]
    headers["Content-Encoding"] = "identity"  # as it is
    assert client.post(COMPLETIONS, data=SHORT, headers=headers).status_code == 200


class Broken(io.RawIOBase):
    def readable(self):
        return True

    def readinto(self, _):
        raise RuntimeError("a bad chunk")


def test_a_body_that_can_not_be_read_is_told_as_one(make_client):
    environ = {"wsgi.input_terminated": True, "wsgi.input": Broken()}
    error = error_of(make_client().post(COMPLETIONS, content_type=JSON, environ_overrides=environ))
    assert (error["code"], error["param"]) == ("invalid_body", None)
    assert "a bad chunk" in error["message"]
