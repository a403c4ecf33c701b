"""A job, which is one sequence to generate. Plain, frozen and picklable."""

from dataclasses import dataclass, field

from switchyard.engine.sampling import Sampling

USUAL_TOKENS = 180  # of an answer, until a client's first has ended


@dataclass(frozen=True, slots=True)
class Healing:
    """Token healing: the prompt ended with the token `text`, which was removed. The first new token
    is one of `token_ids`, which all begin with `text`; the completion omits this beginning.
    """

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """The format of a completion, as a grammar for llguidance. The module `constraints` creates
    constraints.

    The grammar applies from the beginning or, with `after`, from the end of that text, which must
    then coincide with the end of a token. A completion that ends by itself is complete according to
    the grammar.
    """

    grammar: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Forced:
    """Tokens that are forced one by one if the first `after_tokens` tokens don't contain the text
    `unless_text`.
    """

    after_tokens: int
    unless_text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a completion, from the text `begin` to the text `end`, in which `stop_strings` and
    `stop_token_ids` have no effect. White space around the part belongs to the span.

    Without `begin`, the completion begins inside the span. Without `end`, the span extends to the
    completion's end. `is_first`: the span can begin only if nothing but spans and white space
    precedes it.
    """

    begin: str
    end: str = ""
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to generate."""

    identifier: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    negative_prompt: tuple[int, ...] = ()  # for `sampling.cfg_scale`; it needs pages too
    healing: Healing | None = None
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()  # in which the two fields above have no effect
    min_new_tokens: int = 0  # stop tokens and stop strings don't count before
    ignore_eos: bool = False
    end_token_ids: tuple[int, ...] = ()  # in addition to the model's own; see `ignore_eos`
    include_stop: bool = False  # text and tokens end with the stop string, not before it
    stop_on_loop: bool = False  # see LoopDetector
    shown_token_ids: tuple[int, ...] = ()  # special tokens that appear in the text
    constraint: Constraint | None = None
    forced: Forced | None = None
    num_logprobs: int | None = None  # 0: of the token itself only; n: also of the n most probable
    prompt_logprobs: int | None = None  # likewise for the prompt; max_new_tokens may then be 0
    priority: int = 0  # higher first
    client: str = ""  # the client whose share of the engine the job counts against
    kind: str = ""  # of its request: a client's answers of one kind have similar lengths
    # The number of new tokens in such an answer. `Engine.submit` sets it; it is not part of the
    # request.
    usual_tokens: int = field(default=USUAL_TOKENS, compare=False)
    owner: str = ""  # the API key or client that the text belongs to
    request_id: str = ""  # the client's name for the request, for the logs; jobs may share it

    @property
    def num_prompt_tokens(self) -> int:
        """The number of tokens in all prompts, which the model has to compute."""
        return len(self.prompt) + len(self.negative_prompt)

    @property
    def num_sequences(self) -> int:
        """The number of rows that the job occupies in a batch."""
        return 2 if self.negative_prompt else 1

    @property
    def expected_tokens(self) -> int:
        """The number of new tokens that the job is expected to have."""
        return min(self.max_new_tokens, self.usual_tokens)

    def num_pages(self, page_size: int, num_new: int) -> int:
        """The number of pages for the job's prompts, with `num_new` more tokens for each prompt."""
        lengths = [len(self.prompt), *([len(self.negative_prompt)] if self.negative_prompt else [])]
        return sum(-(-(length + num_new) // page_size) for length in lengths)
