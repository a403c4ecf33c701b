"""The real generator over a model that writes the tokens that a prompt's last SAY stands for."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from tokenizers import Tokenizer

from switchyard import engine
from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.job import Forced
from tests.engine.forced import exl2_backend

SAY = re.compile(r"SAY\(([\d ]+)\)")
LIMITS = {"max_seq_len": 8192, "cache_tokens": 32768, "max_batch_size": 8}


def speaking(
    config: ModelConfig,
    grammars: Grammars,
    tokens_of: Callable[[str], tuple[int, ...]],
    logits: Callable[[int], Mapping[int, float] | None] = lambda token_id: None,
    note: Callable[[engine.Job], None] = lambda job: None,
) -> Backend:
    """`tokens_of`: of what is in SAY's brackets. `logits`: of the token after one, where
    nothing is to be said; else, and for None, the model ends. `note` gets each job.
    """
    [end, *_] = grammars.model_tokenizer.eos_token_ids
    plain = Tokenizer.from_file(f"{config.path}/tokenizer.json")
    backend = exl2_backend(
        config.path,
        logits=lambda token_id: logits(token_id) or {end: 0.0},
        grammars=grammars,
        **{name: getattr(config, name) for name in LIMITS},
    )
    enqueue = backend.enqueue

    def scripted(job: engine.Job) -> None:
        note(job)
        if found := SAY.findall(plain.decode(job.prompt, skip_special_tokens=False)):
            job = replace(job, forced=Forced(0, "\0", tokens_of(found[-1])))
        enqueue(job)

    backend.enqueue = scripted
    return backend
