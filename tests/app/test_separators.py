"""Characters that end a line for some clients, in streams and whole answers."""

from tests.app.test_each_route import ask, generating
from tests.scripted import ScriptedBackend, says

SEPARATORS = "\x85\u2028\u2029"
TEXT = f"ä{SEPARATORS}b"


def test_json_never_has_a_raw_line_separator(make_client):
    client = make_client(ScriptedBackend(says(*3 * [TEXT])))
    for method, path, body, media_type in generating(client):
        if media_type != "text/plain":
            text = ask(client, method, path, body, media_type).get_data(as_text=True)
            assert not set(SEPARATORS) & set(text), path
            assert text.count("\\u2028") >= 3, path
