"""Parameters of a generation whose answer can contain logprobs and tokens. Pure."""

from pydantic import Field

from switchyard.app.exceptions import BadRequest
from switchyard.app.request.generation import MAX_LOGPROBS, Generation


class Scored(Generation):
    """A request whose answer can contain logprobs and tokens."""

    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Return `prompt_logprobs`, as in vLLM: for each position of the prompt, the"
        " log-probabilities of the token there and of this number of most probable tokens."
        " Refused with `stream`.",
    )

    return_token_ids: bool = Field(
        False,
        description="Return the token ids of the prompt (`prompt_token_ids`) and of each choice"
        " (`token_ids`, without the stop token). A stream sends each token once. Refused for bare"
        " text.",
    )
    return_tokens_as_token_ids: bool = Field(
        False,
        description="Logprobs show tokens as `token_id:17` instead of text. Refused without"
        " `logprobs`.",
    )

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    def check(self) -> None:
        super().check()
        if self.prompt_logprobs is not None and self.stream:
            raise BadRequest("prompt_logprobs: a stream can't contain them", "prompt_logprobs")
        if self.return_tokens_as_token_ids and self.asked_logprobs is None:
            raise BadRequest(
                "return_tokens_as_token_ids needs logprobs", "return_tokens_as_token_ids"
            )
