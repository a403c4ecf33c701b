"""What the model of a server writes: first a call of a tool that shows it a file, if the client has
one, and once it has seen the file, what it says. It is forced upon the real generator, so that
prompts are computed, and found in the cache, as any other's.
"""

import json
import re
from dataclasses import replace

from switchyard.engine.job import Forced
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.engine.forced import exl2_backend

FILE = "notes.txt"
THINK = "Think first."
SECRET = re.compile(r"The secret word is (\w+)\.")
# No loop, which would end an answer without a limit: Codex names none.
LONG = "".join(f" And so on, {i}." for i in range(150)) + " To the end."
# Names of tools by which the clients read files, and their arguments.
READERS = {
    '"name": "exec_command"': ("exec_command", {"cmd": f"cat {FILE}"}),
    '"name": "shell_command"': ("shell_command", {"command": f"cat {FILE}"}),
    '"name": "read_file"': ("read_file", {"path": FILE}),
    '"name": "Files-read_file"': ("Files-read_file", {"path": FILE}),
    '"name": "Read"': ("Read", {"file_path": FILE}),
}


def answer(prompt, has_form):
    """To the text of a prompt; `has_form`: what is no call is an object with the word."""
    if found := SECRET.findall(prompt):
        return json.dumps({"word": found[-1]}) if has_form else f"It says {found[-1]}.{LONG}"
    for mark, (name, arguments) in READERS.items():
        if mark in prompt:
            call = {"name": name, "arguments": arguments}
            before = "" if has_form else "I look.\n"
            return f"{before}<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return "<think>\nHm.\n</think>\nYes." if THINK in prompt else "A look at a file"


def make_backend(config, *_):
    tokenizer = Tokenizer(ModelDir.read(config.path))
    [end, *_] = tokenizer.eos_token_ids
    backend = exl2_backend(
        config.path,
        logits=lambda token_id: {end: 0.0},
        max_seq_len=config.max_seq_len,
        cache_tokens=config.cache_tokens,
        max_batch_size=config.max_batch_size,
    )
    enqueue = backend.enqueue

    def enqueue_with_answer(job):
        text = answer(tokenizer.decode(job.prompt), job.constraint is not None)
        token_ids = tuple(tokenizer._ordinary(text))
        enqueue(replace(job, forced=Forced(0, "\0", token_ids)))

    backend.enqueue = enqueue_with_answer
    return backend
