"""Reads tokenizer.json, and checks it against the model's other files."""

from collections.abc import Container

import tokenizers
from tokenizers.models import BPE

from switchyard.engine.errors import ModelError
from switchyard.engine.memory.process import give_memory_back
from switchyard.engine.model.contents import MAX_TOKENIZER
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokens.growth import check_growth
from switchyard.files import read_file


def read_tokenizer(model_dir: ModelDir) -> tokenizers.Tokenizer:
    """Raises a one-line ModelError for a file that can't be read."""
    path = model_dir.path / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(read_file(path, MAX_TOKENIZER)[0])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as reason:  # Exceptions, and Rust panics, which are not
        raise ModelError(f"{path} can't be read: {' '.join(str(reason).split())}") from None
    give_memory_back()  # ten times the file's size; later allocations would fragment it
    try:
        check_growth(tokenizer)
    except ModelError as reason:
        raise ModelError(f"{path} {reason}") from None
    tokenizer.no_truncation()  # the file's settings are for training
    tokenizer.no_padding()
    if isinstance(tokenizer.model, BPE):
        # Each thread would cache up to 10,000 words, some 3.5 MB, beyond the tokenizer's life.
        # Without the cache, a text takes a fifth longer.
        tokenizer.model._resize_cache(0)
    return tokenizer


def check_ids(num_tokens: int, added: Container[int], model_dir: ModelDir) -> None:
    """Raises ModelError for tokens outside the vocabulary of the weights, except for added tokens,
    because some files contain an added token for padding.

    `num_tokens`: one more than the highest token id.
    """
    size = model_dir.vocab_size
    if size is None:
        return
    beyond = [i for i in range(size, num_tokens) if i not in added]
    if beyond:
        raise ModelError(
            f"{model_dir.path / 'tokenizer.json'} has token {beyond[0]}, but vocab_size in"
            f" config.json is {size}: the files belong to different models"
        )
