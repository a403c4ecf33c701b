"""The token with which a chat template closes the assistant's turn."""

from switchyard import engine
from switchyard.app.chat.template import ChatTemplate, Conversation

_ANSWER = "An answer"
_MAX_TOKENS = 64


def closing_ids(template: ChatTemplate, tokenizer: engine.Tokenizer) -> tuple[int, ...]:
    """The control token that the template writes right after an answer, even if the model's files
    name another end token. Empty if the template writes no such token.
    """
    messages = [{"role": "user", "content": "A question"}]
    messages += [{"role": "assistant", "content": _ANSWER}]
    conversation = Conversation(messages, add_generation_prompt=False)
    try:
        text = template.render(conversation, tokenizer.escape)
        _, found, behind = text.rpartition(_ANSWER)
        token_ids = tokenizer.encode_template(behind.lstrip(), _MAX_TOKENS) if found else ()
    except engine.EngineError:
        return ()
    return tuple(i for i in token_ids[:1] if i in tokenizer.control_ids)
