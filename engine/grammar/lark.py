"""Translates clients' GBNF to Lark, and refuses parts of Lark.

Each pass takes linear time: patterns are possessive, and a pattern for a part with an end also
matches the part without its end.
"""

import json
import re
from collections.abc import Iterator, Mapping

from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RuleNode, RuleRefNode, resolve

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.json_schema import check_schema
from switchyard.engine.grammar.limits import MAX_CONJUNCTIONS, check_seconds, seconds_of_regex

# Rules and open brackets: the compiler's recursion must fit its stack.
MAX_NESTING = 1500

# The tokens of llguidance's lexer that are more than their characters. Regular expressions, unlike
# strings, may have line breaks in them.
_TEXT = re.compile(
    r"""
      "(?:[^"\\\n]++|\\.)*+(?P<string>"i?)?             # a string
    | /(?!/)(?:[^/\\]++|\\.)*+(?P<regex>/[imslux]*+)?   # a regular expression
    | (?P<comment>//|\#)[^\n]*+
    | (?P<json>%json)[ \t\r\n]*+
    """,
    re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"\b(temperature|max_tokens|stop|stop_capture)\s*+=")
_IS_LARK = re.compile(r"(?m)^[^\S\n]*+(?:%llguidance\b|start\s*+:)")
# Literals and character classes, in which `#` begins no comment; and comments.
_GBNF = re.compile(
    r"""("(?:[^"\\]++|\\.)*+"?+ | \[(?:[^\]\\]++|\\.)*+\]?+) | \#[^\r\n]*+""",
    re.VERBOSE | re.DOTALL,
)


def is_lark(text: str) -> bool:
    """Whether the text has Lark's first rule, or llguidance's options; else it is GBNF."""
    return _IS_LARK.search(text) is not None


def from_gbnf(text: str) -> str:
    """Raises InvalidJob."""
    try:
        # For each comment, the parser would copy all comments so far.
        rules = GrammarParser().parse(_GBNF.sub(r"\1", text))
        in_order = list(rules.values())
        resolve({rule.name: rule for rule in _used_first(rules)})
        return "\n".join(["%llguidance {}", *map(str, in_order)])
    except RecursionError:
        raise InvalidJob("the grammar is nested too deeply", "constraint") from None
    except Exception as reason:  # the library raises plain Exception
        raise InvalidJob(f"the grammar is no GBNF: {str(reason)[:1000]}", "constraint") from None


def _used_first(rules: Mapping[str, RuleNode]) -> list[RuleNode]:
    """Orders rules behind the rules that they refer to, where possible. `resolve` takes a whole
    pass for each terminal that comes before one that it refers to.
    """
    found: dict[str, RuleNode] = {}
    begun: set[str] = set()
    for name in rules:
        path = [(name, _references(rules[name]))] if name not in begun else []
        begun.add(name)
        while path:
            last, references = path[-1]
            following = next((n for n in references if n in rules and n not in begun), None)
            if following is None:
                found[last] = rules[last]
                path.pop()
            else:
                begun.add(following)
                path.append((following, _references(rules[following])))
    return list(found.values())


def _references(rule: RuleNode) -> Iterator[str]:
    nodes: list[ASTNode] = [rule]
    while nodes:
        node = nodes.pop()
        if isinstance(node, RuleRefNode):
            yield node.name
        nodes += node.children()


def check_lark(text: str) -> None:
    """Raises InvalidJob for parts of Lark that llguidance takes and that are not honoured here."""
    code, patterns, seconds = _parts(text)
    if "<" in code:
        raise InvalidJob("special tokens can't be in a grammar", "constraint")
    if attribute := _ATTRIBUTE.search(code):
        raise InvalidJob(f"{attribute[1]} is not supported in a grammar", "constraint")
    if sum(code.count(c) for c in "([{:") > MAX_NESTING:
        raise InvalidJob(f"it has more than {MAX_NESTING} rules and brackets", "constraint")
    if code.count("&") > MAX_CONJUNCTIONS:
        raise InvalidJob(f"it has more than {MAX_CONJUNCTIONS} &", "constraint")
    check_seconds(seconds + seconds_of_regex(code, *patterns))


def _parts(text: str) -> tuple[str, list[str], float]:
    """Returns `text` without strings, regular expressions, comments and schemas; the regular
    expressions; and the estimated seconds of compilation of the schemas. Raises InvalidJob.
    """
    code, patterns, seconds, start = [], [], 0.0, 0
    while match := _TEXT.search(text, start):
        code.append(text[start : match.start()])
        start = match.end()
        if match["json"]:
            try:
                schema, start = json.JSONDecoder().raw_decode(text, start)
            except (ValueError, RecursionError):
                raise InvalidJob("what follows a %json is no JSON", "constraint") from None
            seconds += check_schema(schema)
        elif match["regex"]:
            patterns.append(match[0])
        elif match.lastgroup is None:
            line = text.count("\n", 0, match.start()) + 1
            what = "string" if match[0][0] == '"' else "regular expression"
            raise InvalidJob(f"the {what} of line {line} has no end", "constraint")
    return " ".join([*code, text[start:]]), patterns, seconds
