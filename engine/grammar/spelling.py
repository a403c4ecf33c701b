"""Texts as parts of a rule of Lark. Pure."""

import json


def literal(text: str) -> str:
    """A text as a part of a rule."""
    # The compiler's lexer takes no bare U+007F.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
