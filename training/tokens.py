"""The tokenizer, and rows of token ids to train on."""

import random
from collections.abc import Iterator

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from training.conversations import Conversation, document

PAD, BOS, EOS, START, END = SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] not in ('system', 'user', 'assistant') %}
{{- raise_exception('unknown role ' ~ message['role']) }}
{%- endif %}
{{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

IGNORED = -100  # a target that is not learned
OPEN_ROWS = 16  # that wait for a document which fits


def train_tokenizer(vocab_size: int, seed: int, num_documents: int = 40_000) -> Tokenizer:
    """Byte-level BPE with every digit a token of its own."""
    r = random.Random(f"tokenizer {seed}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (text for _ in range(num_documents) for text in _texts(document(r)))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the texts yield {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer


def _texts(item: Conversation | str) -> list[str]:
    if isinstance(item, str):
        return [item]
    return [item.system, *(text for e in item.exchanges for text in (e.user, e.assistant))]


def encode(
    tokenizer: Tokenizer, items: list[Conversation | str]
) -> list[tuple[list[int], list[int]]]:
    """Token ids and targets of each: of a conversation only the answers are learned."""
    pieces: list[tuple[int, str, bool]] = []  # number of the item, text, whether it is learned
    for i, item in enumerate(items):
        if isinstance(item, str):
            pieces.append((i, item, True))
            continue
        if item.system:
            pieces.append((i, f"system\n{item.system}", False))
        for exchange in item.exchanges:
            pieces.append((i, f"user\n{exchange.user}", False))
            pieces.append((i, exchange.assistant, True))
    bos, eos, start, end = (tokenizer.token_to_id(token) for token in (BOS, EOS, START, END))
    newline = tokenizer.encode("\n", add_special_tokens=False).ids
    assistant = [start, *tokenizer.encode("assistant\n", add_special_tokens=False).ids]
    encoded = tokenizer.encode_batch([text for _, text, _ in pieces], add_special_tokens=False)
    rows: list[tuple[list[int], list[int]]] = [([bos], [IGNORED]) for _ in items]
    for (i, _, is_learned), encoding in zip(pieces, encoded, strict=True):
        ids, targets = rows[i]
        if isinstance(items[i], str):
            _extend(ids, targets, [*encoding.ids, eos], True)
        elif is_learned:
            _extend(ids, targets, assistant, False)
            _extend(ids, targets, [*encoding.ids, end], True)
            _extend(ids, targets, newline, False)
        else:
            _extend(ids, targets, [start, *encoding.ids, end, *newline], False)
    return rows


def _extend(ids: list[int], targets: list[int], more: list[int], is_learned: bool) -> None:
    ids += more
    targets += more if is_learned else [IGNORED] * len(more)


def rows(tokenizer: Tokenizer, seed: str, num_rows: int, length: int) -> Iterator[numpy.ndarray]:
    """`num_rows` arrays (2, length) of int16: token ids and targets, documents one after the other.

    What a token predicts is the target at the next place. Too long a document is left out.
    """
    r = random.Random(seed)
    pad = tokenizer.token_to_id(PAD)
    open_rows: list[tuple[list[int], list[int]]] = []
    while num_rows:
        for ids, targets in encode(tokenizer, [document(r) for _ in range(256)]):
            if len(ids) > length:
                continue
            fitting = [row for row in open_rows if len(row[0]) + len(ids) <= length]
            if fitting:
                fullest = max(fitting, key=lambda row: len(row[0]))
                fullest[0].extend(ids)
                fullest[1].extend(targets)
            else:
                open_rows.append((list(ids), list(targets)))
            if len(open_rows) > OPEN_ROWS and num_rows:
                fullest = max(open_rows, key=lambda row: len(row[0]))
                open_rows.remove(fullest)
                array = numpy.full((2, length), pad, dtype=numpy.int16)
                array[1] = IGNORED
                array[:, : len(fullest[0])] = fullest
                yield array
                num_rows -= 1
