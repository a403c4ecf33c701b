"""A conversation to the token ids of its prompt. Request threads."""

import engine
from app.chat.request import Chat
from app.services import services


def encode(request: Chat, model: engine.Engine) -> tuple[int, ...]:
    """Raises what `Engine.check_room` does, InvalidJob, PromptTooLong."""
    num_characters = sum(len(m.text) for m in request.messages)
    # Before the work of tokenizing: tokens are not longer than 16 characters on average.
    model.check_room(request.n, num_characters // 16 * request.n)
    model.tokenizer.check_length("".join(m.text for m in request.messages), model.info.max_seq_len)
    messages = [
        {"role": m.role, "content": m.text, **({"name": m.name} if m.name else {})}
        for m in request.messages
    ]
    template = services().chat_templates[model.config.name]
    text = template.render(messages, model.tokenizer.escape)
    return model.tokenizer.encode_template(text, model.info.max_seq_len)
