"""Parameters of samplers that are off, which clients of other servers send along."""

import pytest

from switchyard.app.formats.kobold import parse as kobold
from switchyard.app.formats.llamacpp import parse as llamacpp
from switchyard.app.formats.text.request import idle

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
