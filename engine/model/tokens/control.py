"""Tokens that control a model, such as the ends of turns. A user's text must not become such a
token.
"""

import re
from collections.abc import Iterable, Mapping

import tokenizers

from switchyard.engine.model.model_dir import ModelDir

_FORM = re.compile(r"<\|.+\|>|<\uff5c.+\uff5c>|<unused\d*>", re.DOTALL)
_MARKUP = re.compile(r"[^\w\s\u2581]")

Tree = dict[str, "Tree"]  # words by their characters; "" ends a word


def control_ids(added: Mapping[int, tokenizers.AddedToken], model_dir: ModelDir) -> frozenset[int]:
    """The tokens in `added` that are control tokens. These are special, begin or end a prompt
    according to tokenizer_config.json, look like control tokens, or occur in the chat template. In
    many models, the tags around turns and calls aren't special. Words and white space in a template
    aren't control tokens, because they are ordinary text.
    """
    named = {model_dir.special_token("bos_token"), model_dir.special_token("eos_token")}
    template = model_dir.all_templates

    def is_control(token: tokenizers.AddedToken) -> bool:
        text = token.content
        is_spelled = text in template and _MARKUP.search(text) is not None
        return token.special or text in named or is_spelled or _FORM.fullmatch(text) is not None

    return frozenset(token_id for token_id, token in added.items() if is_control(token))


def pattern_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest possible member of `words`. The pattern shares the words'
    common beginnings, because a plain list of a thousand words would be tried word by word.
    """
    tree: Tree = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern(tree) if tree else r"(?!)"


def _pattern(tree: Tree) -> str:
    parts = []
    for start, node in tree.items():
        text = start
        while start and len(node) == 1 and "" not in node:
            [(character, node)] = node.items()
            text += character
        if start:
            parts.append(re.escape(text) + (_pattern(node) if node.keys() != {""} else ""))
    return f"(?:{'|'.join(parts)})" + ("?" if "" in tree else "")
