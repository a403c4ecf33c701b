"""Every parameter of samplers reaches its stage of a draw, whichever way the draw takes."""

import pytest

from switchyard.engine.backends.sampling.draw import Draw
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.sampling import PARAMETERS, BannedString, Sampling
from tests.engine.test_draw import CPU, PROMPT, SIZE, logits_of, rows_of
from tests.scripted import job

LIKELY = 30  # would go on a repetition
PIECES = [b"%02d" % i for i in range(SIZE)]
DRY = {"dry_multiplier": 0.02}
DYNATEMP = {"dynatemp_low": 0.1, "dynatemp_high": 4.0}
MIROSTAT = {"mirostat": True, "mirostat_tau": 2.0}

# A value of each, and what else must be asked for.
ASKED = {
    "cfg_scale": (3.0, {}),
    "repetition_penalty": (1.9, {}),
    "repetition_range": (2, {"repetition_penalty": 1.9}),
    "repetition_decay": (9, {"repetition_penalty": 3.0, "repetition_range": 1}),
    "frequency_penalty": (1.5, {}),
    "presence_penalty": (1.5, {}),
    "dry_multiplier": (9.0, {}),
    "dry_base": (8.0, DRY),
    "dry_allowed_length": (9, {"dry_multiplier": 9.0}),
    "dry_range": (2, {"dry_multiplier": 9.0}),
    "dry_breakers": (tuple(range(SIZE)), {"dry_multiplier": 9.0}),
    "logit_bias": (((4, 9.0),), {}),
    "banned_token_ids": (tuple(range(10)), {}),
    "allowed_token_ids": (tuple(range(10)), {}),
    "banned_strings": ((BannedString(b"01", tuple(range(10)), ((), ())),), {}),
    "smoothing_factor": (0.9, {}),
    "smoothing_curve": (9.0, {"smoothing_factor": 0.9}),
    "temperature": (0.5, {}),
    "dynatemp_low": (2.0, {"dynatemp_high": 4.0}),
    "dynatemp_high": (4.0, {}),
    "dynatemp_exponent": (9.0, DYNATEMP),
    "temperature_last": (True, {"temperature": 3.0, "min_p": 0.5}),
    "top_k": (4, {}),
    "top_p": (0.4, {}),
    "top_a": (0.9, {}),
    "min_p": (0.4, {}),
    "tfs": (0.3, {}),
    "typical_p": (0.3, {}),
    "mirostat": (True, {"mirostat_tau": 1.0}),
    "mirostat_tau": (0.5, MIROSTAT),
    "mirostat_eta": (1.0, MIROSTAT),
    "xtc_probability": (1.0, {}),
    "xtc_threshold": (0.4, {"xtc_probability": 1.0}),
    "skew": (3.0, {}),
    "seed": (5, {}),
}
WAYS = {
    "all tokens": {},
    "the likeliest tokens": {"top_k": 20},
    "all tokens, row by row": {"top_a": 0.001},
}


def drawn(**asked):
    """The tokens of some steps of jobs that all ask for the same, beside one that asks for none."""
    samplers = [
        Sampler(
            job(
                f"job{seed}",
                1000,
                prompt=(*PROMPT, LIKELY, *PROMPT),
                negative_prompt=(1,),
                sampling=Sampling(**{"seed": seed, **asked}),
            ),
            (),
            PIECES,
            (),
        )
        for seed in range(12)
    ]
    plain = Sampler(job("plain", 1000), (), PIECES, ())
    draw, tokens = Draw(SIZE, CPU), []
    for step in range(3):
        rows = rows_of(logits_of(step)).repeat(len(samplers) + 1, 1)
        rows[:, LIKELY] += 4 * (step == 0)
        negative = rows_of(logits_of(step + 100)).repeat(len(samplers), 1)
        *token_ids, _ = draw([*samplers, plain], rows, negative).token_ids
        for sampler, token_id in zip(samplers, token_ids, strict=True):
            sampler.accept(token_id)
        tokens.append(token_ids)
    return tokens


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PARAMETERS)
def test_each_parameter_changes_what_is_drawn(name, way):
    value, others = ASKED[name]
    others = {**WAYS[way], **others}
    assert drawn(**{**others, name: value}) != drawn(**others)


@pytest.mark.parametrize("name", [name for name, one in PARAMETERS.items() if one.part_of])
def test_a_part_of_what_is_off_changes_nothing(name):
    assert drawn(**{name: ASKED[name][0]}) == drawn()
