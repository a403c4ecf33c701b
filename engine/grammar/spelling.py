"""JSON's tokens as regular expressions, which match every spelling that JSON allows for a text.
Does no I/O.
"""

import functools
import json

# Between the tokens of JSON. Bounded, because a model in doubt would write spaces up to its token
# limit.
WHITESPACE = r"( |\n[ \t]{0,20})?"
ANY_WHITESPACE = r"[ \n\r\t]*"

_HEX = "[0-9a-fA-F]"
# Half a surrogate pair is not a character: most readers of JSON refuse or replace it.
_ESCAPED = (
    rf'\\(["\\\/bfnrt]|u([0-9a-cA-Ce-fE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}'
    rf"|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}))"
)
CHARACTER = rf'({_ESCAPED}|[^"\\\x00-\x1f])'
BARE_CHARACTER = r'[^"\\\x00-\x1f]'
STRING = f'"{CHARACTER}*"'

_SHORT = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def spellings(text: str) -> str:
    """A regular expression that matches every way to write `text` between quotes in JSON."""
    return "".join(map(_of_character, text))


@functools.lru_cache(maxsize=4096)
def _of_character(character: str) -> str:
    whole = character.encode("utf-16-be", "surrogatepass")
    units = [whole[i : i + 2].hex() for i in range(0, len(whole), 2)]
    forms = ["".join(rf"\\u{''.join(map(_either_case, unit))}" for unit in units)]
    if character in _SHORT:
        forms.append(r"\\" + escaped(_SHORT[character]))
    if character not in '"\\' and character >= " " and not "\ud800" <= character <= "\udfff":
        forms.append(escaped(character))
    return forms[0] if len(forms) == 1 else f"({'|'.join(forms)})"


def _either_case(digit: str) -> str:
    return f"[{digit}{digit.upper()}]" if digit.isalpha() else digit


def escaped(character: str) -> str:
    """A regular expression that matches only this character."""
    return character if character.isalnum() else rf"\x{{{ord(character):x}}}"


def literal(text: str) -> str:
    """A text as a part of a rule."""
    # The compiler's lexer doesn't accept a bare U+007F.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
