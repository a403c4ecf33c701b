"""Presets: sampling parameters of the configuration by name; and those of samplers that are off."""

import pytest

from switchyard.app import SettingsError, read_settings
from switchyard.app.formats.kobold import parse as kobold
from switchyard.app.formats.llamacpp import parse as llamacpp
from switchyard.app.formats.text.request import idle
from tests.app.refused import error_of

URL = "/v1/completions"


@pytest.mark.parameter("preset")
def test_a_preset_holds_where_the_request_says_nothing(make_client):
    client = make_client(presets={"calm": {"temperature": 0.3, "top_p": 0.5}})
    body = {"prompt": "x", "preset": "calm", "top_p": 0.9}
    assert client.post(URL, json=body).status_code == 200
    [job] = client.backend.enqueued
    assert (job.sampling.temperature, job.sampling.top_p) == (0.3, 0.9)
    body = {"prompt": "x", "preset": "calm", "mirostat_mode": 2}
    assert client.post(URL, json=body).headers["x-switchyard-ignored"] == "top_p"
    assert client.backend.enqueued[1].sampling.top_p == 1


DRY, DRY_ON = {"dry_multiplier": 0.8, "dry_base": 1.9}, {"dry_multiplier": 0.8, "dry_base": 1.5}
KOBOLD, TEXTGEN = "/api/v1/generate", {"max_new_tokens": 3}
RANGE = {"dynatemp_low": 0.5, "dynatemp_high": 1.5}
GUIDED = {"cfg_scale": 2, "negative_prompt": "no"}


@pytest.mark.parametrize(
    ("preset", "path", "own", "expected"),
    [
        # What the preset turns on and the request only adjusts
        (DRY, "/completion", {"dry_base": 1.5}, DRY_ON),
        (DRY, KOBOLD, {"dry_base": 1.5}, DRY_ON),
        (DRY, KOBOLD, {**TEXTGEN, "dry_base": 1.5}, DRY_ON),
        (DRY, "/completion", {"dry_multiplier": 0, "dry_base": 0}, {"dry_multiplier": 0}),
        (DRY, "/completion", {"dry_penalty_last_n": 0, "dry_base": 0}, {"dry_multiplier": 0}),
        # What a parameter of the request needs
        (GUIDED, URL, {"negative_prompt": "never"}, {"cfg_scale": 2}),
        (RANGE, URL, {"dynatemp_low": 0.7}, {**RANGE, "dynatemp_low": 0.7}),
        (
            {"repetition_penalty_range": 64},
            *(URL, {"repetition_decay": 9}, {"repetition_range": 64, "repetition_decay": 9}),
        ),
    ],
    ids=str,
)
def test_a_preset_and_a_request_add_up(make_client, preset, path, own, expected):
    client = make_client(presets={"mine": preset})
    response = client.post(path, json={"prompt": "x", "preset": "mine", **own})
    assert response.status_code == 200, response.json
    [job] = client.backend.enqueued
    assert {field: getattr(job.sampling, field) for field in expected} == expected


@pytest.mark.parametrize(("path", "own"), [(URL, {}), (KOBOLD, TEXTGEN)])
def test_what_the_preset_lacks_as_well_is_asked_for_by_the_clients_name(make_client, path, own):
    client = make_client(presets={"calm": {"temperature": 0.3}})
    body = {"prompt": "x", "preset": "calm", "guidance_scale": 2, **own}
    error = error_of(client.post(path, json=body))
    assert "guidance_scale and negative_prompt must be set together" in error["message"]
    assert not client.backend.enqueued


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("temperature = 9", "temperature"),
        ("max_tokens = 9", "unknown parameter: max_tokens"),
        ("mirostat_mode = 2\ntop_k = 4", "top_k can.t be combined"),
    ],
)
def test_a_wrong_preset_is_named_at_start(tmp_path, monkeypatch, preset, message):
    (tmp_path / "switchyard.toml").write_text(f"[presets.mine]\n{preset}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=f"presets in switchyard.toml: mine: .*{message}"):
        read_settings()


# Parameters of samplers that are off, which clients of other servers send along
FACTORS = {"guidance_scale", "rep_pen", "repeat_penalty", "repetition_penalty"}  # off at 1
SWITCHES = [*kobold.KOBOLD_SWITCHES, *kobold.TEXTGEN_SWITCHES, *llamacpp.SWITCHES]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_what_belongs_to_a_sampler_that_is_off_is_left_out(switch):
    assert switch.off == (switch.name in FACTORS)
    others = dict.fromkeys(switch.others, 7)
    if not switch.is_setting:
        assert idle(others, [switch]) == {*switch.others}  # nothing says that it is on
    assert idle({**others, switch.name: switch.off}, [switch]) == {*switch.others}
    assert idle({**others, switch.name: switch.off + 0.5}, [switch]) == set()


@pytest.mark.parametrize("ask", [kobold.Kobold, kobold.Textgen, llamacpp.LlamaCpp])
def test_a_window_of_no_tokens_turns_a_sampler_off(ask):
    switch = next(s for s in ask.switches if s.window)
    [other, *_] = (name for name in switch.others if name != switch.window)
    given = {switch.name: 2.0, other: 3, "prompt": "x"}
    for window, is_off in ((0, True), (1, False), (-1, False), (False, False), (0.0, False)):
        left = ask.settle({**given, switch.window: window})
        assert (left[switch.name] == switch.off) is is_off
        assert (other in left) is not is_off
        assert left["prompt"] == "x"
