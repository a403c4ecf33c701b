"""The `stream_options` parameter. Pure."""

from pydantic import BaseModel, Field

from switchyard.app.request.validation import Finite, Off


class StreamOptions(BaseModel):
    model_config = Finite

    include_usage: bool | None = Field(None, description="Add a final frame with `usage`.")
    continuous_usage_stats: bool | None = Field(
        None,
        description="With `include_usage`, each frame has the `usage` so far, as in vLLM.",
    )
    include_obfuscation: Off | None = None
