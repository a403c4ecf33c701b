"""Extracts prose from pages without their code, from the docstrings, comments and messages of
Python files, and from the comments of JavaScript files. A text keeps the lines of its file and
blanks everything else, so that positions are correct.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

FENCE = re.compile(r"^\s*```")
CODE = re.compile(r"`[^`\n]+(?:\n[^`\n]+)?`")
LINK = re.compile(r"\]\([^)\s]+\)")
COMMENT = re.compile(r"(?:(?:^|\s)//|^\s*/\*\*)(?P<text>\s.*)$")  # of JavaScript
MESSAGE = re.compile(r"[A-Za-z'\"`(]\S*(?: \S+){3,}")  # four words or more
NOTES = ("noqa", "type:", "fmt:", "mypy:", "ruff:", "same:")  # for other tools


def plain(text: str) -> str:
    """Replaces code with one word, and a link with its text. Positions in the text don't change."""
    text = CODE.sub(lambda code: "`" + re.sub(r"[^\n]", "x", code[0][1:-1]) + "`", text)
    return LINK.sub(lambda target: "]" + " " * (len(target[0]) - 1), text)


def of_page(source: str) -> str:
    lines = []
    inside = False
    for line in source.splitlines():
        is_fence = FENCE.match(line)
        inside ^= bool(is_fence)
        is_prose = not (inside or is_fence or line.lstrip().startswith("<!--"))
        lines.append(line if is_prose else "")
    return plain("\n".join(lines))


def of_python(source: str) -> str:
    lines = [""] * (source.count("\n") + 2)
    for number, text in [*comments(source), *strings(source)]:
        lines[number - 1] += f" {text}"
    return plain("\n".join(lines))


def of_script(source: str) -> str:
    found = map(COMMENT.search, source.splitlines())
    return plain("\n".join(comment["text"] if comment else "" for comment in found))


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("#! ")
        if token.type == tokenize.COMMENT and not text.startswith(NOTES):
            yield token.start[0], text


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Yields docstrings and messages. A message is a string of several words; a value is one
    word.
    """
    nodes = list(ast.walk(ast.parse(source)))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in parts:
            continue
        text = text_of(node)
        if id(node) in docs:
            yield from enumerate(text.splitlines(), node.lineno)
        elif MESSAGE.search(text):
            yield node.lineno, text.replace("\n", " ")


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(text_of(part) or "x" for part in parts)
    return ""
