"""Parameters of a generation whose answer can hold logprobs and tokens. Pure."""

from typing import ClassVar

from pydantic import Field

from switchyard.app.exceptions import BadRequest
from switchyard.app.request.generation import Generation
from switchyard.app.request.neutral import Table, but


class Scored(Generation):
    """A request whose answer can hold logprobs and tokens."""

    neutral: ClassVar[Table] = but(Generation.neutral, "return_token_ids")

    return_token_ids: bool = Field(
        False,
        description="Return the tokens of the prompt, `prompt_token_ids`, and of each choice,"
        " `token_ids`, without the stop token. A stream sends each token once. Refused for bare"
        " text.",
    )
    return_tokens_as_token_ids: bool = Field(
        False,
        description="Logprobs call tokens `token_id:17`, not by their text. Refused without"
        " `logprobs`.",
    )

    def check(self) -> None:
        super().check()
        if self.return_tokens_as_token_ids and self.asked_logprobs is None:
            raise BadRequest(
                "return_tokens_as_token_ids needs logprobs", "return_tokens_as_token_ids"
            )
