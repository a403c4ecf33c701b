"""The kinds of small changes, by the node of the syntax tree that they change."""

import ast
import dataclasses
import itertools
import re
from collections.abc import Iterator

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
TWINS = {
    "all": "any",
    "any": "all",
    "max": "min",
    "min": "max",
    "popleft": "pop",
    "removeprefix": "removesuffix",
    "removesuffix": "removeprefix",
    "startswith": "endswith",
    "endswith": "startswith",
}
ORDERLESS = {"cast", "field", "gcd", "getattr", "isdisjoint", "isinstance", "max", "min", "zip"}
LOGS = re.compile(r"(\w*log\w*|warnings)\.(critical|debug|error|exception|info|log|warn(ing)?)$")


@dataclasses.dataclass(frozen=True)
class Change:
    """The code from the first node to the last is replaced with `after`."""

    kind: str
    first: ast.AST
    last: ast.AST
    after: str


def changes(node: ast.AST) -> Iterator[Change]:
    """Yields the changes to the node itself, but not to the nodes inside it."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.expr):
        yield from _of_expression(node)
    if isinstance(node, ast.If | ast.IfExp):
        yield from _condition(node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _condition(test)
    elif isinstance(node, ast.ExceptHandler):
        if node.type:
            yield _replaced("not caught", node.type, "()")
        if not isinstance(node.body[0], ast.Pass):
            yield Change("swallowed", node.body[0], node.body[-1], "pass")


def is_log(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=function)):
            return bool(LOGS.search(ast.unparse(function)))
    return False


def _replaced(kind: str, node: ast.AST, after: str) -> Change:
    return Change(kind, node, node, after)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield _replaced("call removed", node, "pass")
        case ast.Raise() | ast.Continue() | ast.Break() | ast.Delete() | ast.AugAssign():
            yield _replaced("statement removed", node, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            if ast.unparse(node.value) not in ("None", "[]", "{}", "0", "False"):
                yield _replaced("statement removed", node, "pass")
        case ast.Return(value=ast.Compare() | ast.BoolOp()):
            yield _replaced("return", node, "return True")
            yield _replaced("return", node, "return False")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _replaced("return", node, "return None")
        case ast.With(items=items) if not any(item.optional_vars for item in items):
            yield Change("with dropped", node, items[-1].context_expr, "if True")
        case ast.Try(finalbody=[first, *_]):
            yield Change("finally emptied", first, node.finalbody[-1], "pass")
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield _replaced("condition", test, "False")


def _condition(test: ast.expr) -> Iterator[Change]:
    if not (isinstance(test, ast.Constant) or _sets_a_name(test)):
        yield _replaced("condition", test, "True")
        yield _replaced("condition", test, "False")


def _of_expression(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for place, each in enumerate(ops):
                others = [*ops[:place], COMPARISONS[type(each)](), *ops[place + 1 :]]
                other = ast.unparse(ast.Compare(left, others, comparators))
                yield _replaced("comparison", node, other)
        case ast.BoolOp(op=op, values=values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield _replaced("and/or", node, f"({ast.unparse(ast.BoolOp(other_op, values))})")
            for value in itertools.filterfalse(_sets_a_name, values):
                yield _replaced("operand dropped", value, str(isinstance(op, ast.And)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _replaced("not dropped", node, f"({ast.unparse(operand)})")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not (_is_text(left) or _is_text(right)):
                other = ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))
                yield _replaced("arithmetic", node, f"({other})")
        case ast.Constant(value=bool() as value):
            yield _replaced("constant", node, str(not value))
        case ast.Constant(value=int() as value):
            yield _replaced("constant", node, str(value + 1))
            if value > 1:
                yield _replaced("constant", node, str(value - 1))
        case ast.Constant(value=float() as value):
            yield _replaced("constant", node, str(value * 2 or 1.0))
        case ast.Await(value=awaited):
            yield _replaced("await dropped", node, f"({ast.unparse(awaited)})")


def _sets_a_name(node: ast.expr) -> bool:
    """Whether the node sets a name that is read later. Without the node, any test that runs the
    code would fail.
    """
    return any(isinstance(each, ast.NamedExpr) for each in ast.walk(node))


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str() | bytes()) | ast.JoinedStr() | ast.List() | ast.Tuple():
            return True
        case ast.BinOp(left=left, right=right):
            return _is_text(left) or _is_text(right)
    return False


def _of_call(node: ast.Call) -> Iterator[Change]:
    name = ast.unparse(node.func).rpartition(".")[2]
    if name in TWINS:
        function = node.func
        after = TWINS[name]
        if isinstance(function, ast.Attribute):
            after = ast.unparse(ast.Attribute(function.value, after))
        yield _replaced("twin", function, after)
    if name not in ORDERLESS and not any(isinstance(each, ast.Starred) for each in node.args):
        for left, right in itertools.pairwise(node.args):
            after = f"{ast.unparse(right)}, {ast.unparse(left)}"
            yield Change("arguments swapped", left, right, after)
    for keyword in node.keywords:
        if keyword.arg and name != "Field":  # descriptions and limits of a setting
            yield _replaced("option dropped", keyword, "**{}")
