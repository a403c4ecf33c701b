"""Fill-in-the-middle prompts, depending on the model's family. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request.infill_forms import FAMILIES, FORMS, Extra, Form, Gap
from switchyard.app.request.prompt_tokens import PromptTokens, limited

MARK = "\u263a"  # one or more tokens, which never merge with the tokens of another text
_NAME = "filename\n"  # the name of the file with the gap, as in llama.cpp


def infill(tokenizer: engine.Tokenizer, gap: Gap, max_tokens: int, param: str) -> PromptTokens:
    """The tokens of a prompt with a gap, and the tokens that end the generated middle.

    `max_tokens`: the maximum number of tokens in the prompt. `param`: the request's name for the
    suffix. Raises BadRequest for a model of an unknown family, and PromptTooLong.
    """
    form = next((form for form in FORMS if _has(tokenizer, form.tokens)), None)
    if form is None:
        raise BadRequest(
            f"{param}: this model has no fill-in-the-middle tokens; models of these families have"
            f" them: {FAMILIES}",
            param,
        )

    def read(text: str) -> tuple[int, ...]:
        return tokenizer.encode(text, max_tokens, add_bos=False) if text else ()

    def go_on(text: str) -> tuple[int, ...]:
        """The tokens of `text`, without the space that some tokenizers put before each text."""
        first = read(MARK)
        if not text or not tokenizer.piece(first[0]).startswith(b" "):
            return read(text)
        token_ids = read(MARK + text)
        return token_ids[len(first) :] if token_ids[: len(first)] == first else read(text)

    before, between, *behind = (tokenizer.token_id(name) for name in form.tokens)
    is_named = bool(gap.extras) and form.name_in_gap and _has_files(tokenizer, form)
    prefix, suffix = read(f"{_NAME}{gap.prefix}" if is_named else gap.prefix), go_on(gap.suffix)
    first, second = (suffix, prefix) if form.suffix_first else (prefix, suffix)
    token_ids = [
        *tokenizer.encode("", max_tokens),  # the tokens that begin each prompt of this model
        *_files(tokenizer, form, gap.extras, go_on),
        *(before, *first, between, *second, *behind),
        *go_on(gap.begin),
    ]
    found = limited([i for i in token_ids if i is not None], max_tokens)
    ends = (tokenizer.token_id(name) for name in form.ends)
    return PromptTokens(found, tuple(i for i in ends if i is not None))


def _has(tokenizer: engine.Tokenizer, names: Iterable[str]) -> bool:
    return all(tokenizer.token_id(name) is not None for name in names)


def _has_files(tokenizer: engine.Tokenizer, form: Form) -> bool:
    return form.files is not None and _has(tokenizer, form.files)


def _files(
    tokenizer: engine.Tokenizer,
    form: Form,
    extras: Sequence[Extra],
    read: Callable[[str], tuple[int, ...]],
) -> Iterator[int | None]:
    """The tokens of other files, laid out as a repository with llama.cpp's placeholder names.

    A model without tokens for files gets only their texts, one after another.
    """
    if not extras:
        return
    if form.files is None or not _has_files(tokenizer, form):
        yield from read("".join(f"\n\n--- {one.filename} ---\n\n{one.text}" for one in extras))
        return
    repository, file = map(tokenizer.token_id, form.files)
    newline = "" if form.name_in_gap else "\n"
    yield repository
    yield from read(f"myproject{newline}")
    for one in extras:
        end = "" if one.text.endswith("\n") else newline
        yield file
        yield from read(f"{one.filename}\n{one.text}{end}")
    yield file
    if not form.name_in_gap:
        yield from read(_NAME)
