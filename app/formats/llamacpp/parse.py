"""Requests to llama.cpp's /completion. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator

from switchyard import engine
from switchyard.app.formats.text.request import (
    WINDOW,
    OtherServers,
    Switch,
    called,
)
from switchyard.app.request.generation import MAX_LOGPROBS, UNLIMITED
from switchyard.app.request.neutral import ANY, OFF, Table
from switchyard.app.request.prompt_tokens import PromptTokens, limited
from switchyard.app.request.sampling import Bias, TokenId
from switchyard.app.request.validation import Object, validate

SWITCHES = (
    Switch(
        "dry_multiplier",
        0,
        ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        "dry_penalty_last_n",
    ),
    Switch("dynatemp_range", 0, ("dynatemp_exponent",)),
    Switch("mirostat", 0, ("mirostat_tau", "mirostat_eta")),
    Switch("repeat_penalty", 1, ("repeat_last_n",), is_setting=True),
    Switch("repeat_penalty", 1, ("penalize_nl",)),
)
TEXT = "prompt_string"  # the member that holds the text of a prompt that is an object
MAX_BIASED = 200  # characters of a biased text; a character has at most four tokens

Piece = TokenId | Annotated[str, Field(min_length=1)]
Pieces = Annotated[list[Piece], Field(min_length=1, fail_fast=True)]
BiasedText = Annotated[str, Field(min_length=1, max_length=MAX_BIASED)]
Banned = Literal[False] | Bias


class PromptObject(Object):
    prompt_string: str = Field(min_length=1)
    multimodal_data: Annotated[list[str], Field(max_length=0)] = Field(default=[])


Given = Annotated[str, Field(min_length=1)] | PromptObject | Pieces
Prompts = Annotated[list[Given], Field(min_length=1)]


class LlamaCppOptions(OtherServers):
    """The parameters that /completion and /infill share."""

    model_config = called("llamacpp")
    neutral: ClassVar[Table] = {
        **OtherServers.neutral,
        "backend_sampling": (False, True),
        "image_data": ([],),
        "lora": ([],),
        "n_indent": ANY,
        "n_keep": (0,),
        "post_sampling_probs": OFF,
        "t_max_predict_ms": ANY,  # editors such as llama.vim limit the time of an infill with this
        "t_max_prompt_ms": ANY,
    }
    settled: ClassVar[Table] = {"n": (1,)}
    switches: ClassVar[tuple[Switch, ...]] = SWITCHES
    kinds: ClassVar[dict[str, str]] = {
        "logit_bias": "must map token ids or texts to false or to numbers from -100 to 100, as an"
        " object or as a list of pairs with at most 1024 entries"
    }

    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None,
        description="Maximum number of new tokens, within the context. 0: the prompt is"
        f" computed, but nothing is generated. {UNLIMITED}",
    )
    repetition_penalty_range: int = Field(-1, ge=-1, lt=2**31, description=WINDOW)
    logit_bias: dict[BiasedText, Bias] = Field(
        default={},
        max_length=1024,
        description="Numbers that are added to the logits of tokens. The key is a token id, or a"
        " text that stands for each of its tokens. A list of pairs is also accepted. false means"
        " -100.",
    )
    n_probs: int = Field(
        0,
        ge=0,
        le=MAX_LOGPROBS,
        description="Number of most probable tokens whose log-probabilities"
        " `completion_probabilities` contains at each position, in addition to the"
        " token's own.",
    )
    return_tokens: bool = Field(
        False, description="Also return the tokens of the text. A stream always returns them."
    )
    response_fields: list[Annotated[str, Field(max_length=200)]] = Field(
        default=[],
        max_length=64,
        description="The only fields that the answer has; `a/b` is the field `b` in `a`. Unknown"
        " names have no effect. In a stream, this applies only to the last event.",
    )
    timings: bool = Field(True, description="Return the time of each stage; see Timings.")

    @field_validator(
        "logit_bias",
        mode="before",
        json_schema_input_type=dict[BiasedText, Banned] | list[tuple[TokenId | BiasedText, Banned]],
    )
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if isinstance(value, list) and all(map(_is_pair, value)):
            value = {str(key) if type(key) is int else key: bias for key, bias in value}
        if isinstance(value, dict):
            return {key: -100.0 if bias is False else bias for key, bias in value.items()}
        return value

    @property
    def asked_logprobs(self) -> int | None:
        return self.n_probs or None

    @property
    def num_prompt_logprobs(self) -> int | None:
        return 0 if self.max_tokens == 0 else None  # a job without new tokens must score its prompt

    def sampling(self, config: engine.ModelConfig) -> engine.Sampling:
        by_id = {key: bias for key, bias in self.logit_bias.items() if _is_id(key)}
        return OtherServers.sampling(self.model_copy(update={"logit_bias": by_id}), config)

    def tokenized(self, job: engine.Job, tokenizer: engine.Tokenizer, limit: int) -> engine.Job:
        bias = self.biased(job.sampling, tokenizer)
        job = replace(job, sampling=replace(job.sampling, logit_bias=tuple(bias.items())))
        return super().tokenized(job, tokenizer, limit)

    def biased(self, sampling: engine.Sampling, tokenizer: engine.Tokenizer) -> dict[int, float]:
        """The bias of each token that is given by its id or occurs in a given text."""
        bias = dict(sampling.logit_bias)
        for text, value in self.logit_bias.items():
            if not _is_id(text):
                token_ids = tokenizer.encode(text, 4 * MAX_BIASED, add_bos=False)
                bias.update(dict.fromkeys(token_ids, value))
        return bias


class LlamaCpp(LlamaCppOptions):
    kinds: ClassVar[dict[str, str]] = {
        **LlamaCppOptions.kinds,
        "prompt": "must be a text, tokens, a mixture of both, or a list of these, none of them"
        " empty; multimodal_data is not supported",
    }

    prompt: list[Pieces] = Field(
        min_length=1,
        fail_fast=True,
        description="The text to continue, or tokens, or a mixture of both; or a list of these,"
        ' each with its own answer. `{"prompt_string": TEXT}` is also accepted.',
    )

    @field_validator("prompt", mode="before", json_schema_input_type=Given | Prompts)
    @classmethod
    def _list_of_prompts(cls, value: Any) -> Any:
        if isinstance(value, list) and any(type(one) is int for one in value):
            return [value]
        return list(map(_pieces, value)) if isinstance(value, list) else [_pieces(value)]

    @property
    def num_prompts(self) -> int:
        return len(self.prompt)

    @property
    def size(self) -> int:
        return sum(len(p) if isinstance(p, str) else 4 for one in self.prompt for p in one)

    def read(self, tokenizer: engine.Tokenizer, max_tokens: int) -> list[PromptTokens]:
        return [PromptTokens(self._read(one, tokenizer, max_tokens)) for one in self.prompt]

    def _read(
        self, pieces: Sequence[int | str], tokenizer: engine.Tokenizer, max_tokens: int
    ) -> tuple[int, ...]:
        """The tokens of one prompt. The BOS token is added only if the prompt begins with a
        text.
        """
        token_ids: list[int] = []
        for i, piece in enumerate(pieces):
            if isinstance(piece, int):
                token_ids.append(piece)
            else:
                token_ids += tokenizer.encode(
                    piece, max_tokens, add_bos=i == 0, parse_special=self.parse_special
                )
        return limited(token_ids, max_tokens)


def completion(body: dict[str, Any]) -> LlamaCpp:
    """Parses a request from its JSON body. Raises BadRequest."""
    return validate(LlamaCpp, body)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str | int)


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 10


def _pieces(value: Any) -> Any:
    """A prompt as a list of texts and tokens."""
    if isinstance(value, dict):
        try:
            value = PromptObject.model_validate(value).prompt_string
        except ValidationError:
            raise ValueError("no text") from None
    return [value] if isinstance(value, str) else value
