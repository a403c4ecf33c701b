"""The sandbox of chat templates. Templates come with models, so a template may be hostile or loop
forever.

Only this module and `template` import jinja2.
"""

import functools
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from typing import Any, TypeVar

import jinja2
import jinja2.nodes
import jinja2.sandbox
import jinja2.visitor
from jinja2.runtime import Context
from jinja2.utils import Namespace

MAX_SECONDS = 2.0  # CPU time for one prompt
MAX_LENGTH = 2**25  # characters in any text, including the prompt
MAX_ITEMS = 2**20  # items in a list, including nested items
MAX_BITS = 10_000  # bits of an integer
_CHECK_EVERY = 16  # calls and loop iterations between two checks of the clock
_ITEM = MAX_LENGTH // MAX_ITEMS  # characters that each item of a list counts as

# Methods and filters whose result may be much longer than their input.
_PADDING = {"center", "ljust", "rjust", "zfill", "expandtabs", "indent"}
_FORMATTING = {"format", "format_map"}
_MULTIPLYING = {*_PADDING, *_FORMATTING, "replace", "join", "batch", "slice", "tojson"}
_WIDE = re.compile(r"\d{6}|%[-+ #0]*+[.]?\*|:[^{}]*+\{")

_NESTED: tuple[type[Collection[Any]], ...] = (
    list,
    tuple,
    dict,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)

Value = TypeVar("Value")
Filter = TypeVar("Filter", bound=Callable[..., Any])


class TooMuch(jinja2.TemplateError):
    """The template takes too long, or its result is too large."""


class _State(threading.local):
    """The state of the prompt that a thread is rendering."""

    turns = 0
    deadline = math.inf
    joined: tuple[list[Any] | None, int] = None, 0  # the latest sum of lists, and its size


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A jinja2 environment with limits. Any thread may render; threads share no state.

    The sandbox checks the time only at calls and in loops, because a template without calls or
    loops always ends. The sandbox also checks the size of each list, and of each result of an
    operator, filter or call.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        # The optimizer would compute constants at compile time, when errors look like bad syntax.
        super().__init__(optimized=False, **options)
        self._state = _State()

    def bound_filters(self) -> None:
        """Applies the limits to all filters. Call this method after the last filter has been
        added.
        """
        self.filters = {name: self._bounded(f, name) for name, f in self.filters.items()}
        self.filters["_watched"] = self._watched
        self.filters["_kept"] = self._kept
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]

    def render(self, template: jinja2.Template, **variables: Any) -> str:
        """The rendered text. Raises TooMuch, or any exception that the template causes."""
        self._state.deadline = time.thread_time() + MAX_SECONDS
        self._state.turns = 0
        self._state.joined = None, 0
        parts, length = [], 0
        for part in template.generate(**variables):
            parts.append(part)
            length += len(part)
            _check_length(length)
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "+", list(), list():
                return self._joined(left, right)
            case "+", _, _:
                pass
            case "*", int(), int():
                pass
            case ("*", Sized(), int()) | ("*", int(), Sized()):
                value, times = (left, right) if isinstance(left, Sized) else (right, left)
                _check_length(len(value) * times, _limit(value))
            case "**", int(), int() if left.bit_length() * right > MAX_BITS:
                raise TooMuch("it computes a number that is too large")
            case "%", str(), _:
                _check_arguments("format", (left, right))
        return self._kept(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str) and __obj.__name__ in _MULTIPLYING:
            _check_arguments(__obj.__name__, (owner, *args, *kwargs.values()))
        __self._look()
        __self._kept((args, kwargs))  # a macro keeps its arguments as `varargs` and `kwargs`
        return __self._kept(super().call(__context, __obj, *args, **kwargs))

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **options: Any) -> str:
        return super()._generate(_Watch().visit(source), *args, **options)

    def _watched(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop. Checks the clock at each item."""
        for item in items:
            self._look()
            yield item

    def _look(self) -> None:
        self._state.turns += 1
        if self._state.turns % _CHECK_EVERY == 0:
            self._check_time()

    def _check_time(self) -> None:
        if time.thread_time() > self._state.deadline:
            raise TooMuch(f"it takes more than {MAX_SECONDS:g} seconds")

    def _kept(self, value: Value) -> Value:
        if isinstance(value, str):
            _check_length(len(value))
        elif isinstance(value, _NESTED):
            _check_length(_size(value) // _ITEM, MAX_ITEMS)
            self._check_time()
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TooMuch("it computes a number that is too large")
        return value

    def _joined(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The sum of two values. If a list grows item by item, only the new items are measured."""
        last, size = self._state.joined
        size = (size if left is last else _size(left)) + _size(right)
        _check_length(size // _ITEM, MAX_ITEMS)
        self._check_time()
        self._state.joined = left + right, size
        return self._state.joined[0]

    def _bounded(self, function: Filter, name: str) -> Filter:
        @functools.wraps(function)  # also copies the attributes by which jinja2 passes its context
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name in _MULTIPLYING:
                _check_arguments(name, (*args, *kwargs.values()))
            return self._kept(function(*args, **kwargs))

        return bounded  # type: ignore[return-value]


class _Namespace(Namespace):
    """A namespace whose text representation omits its values, because they may be nested
    infinitely.
    """

    def __repr__(self) -> str:
        return "<Namespace>"


class _Watch(jinja2.visitor.NodeTransformer):
    """Rewrites a template so that loops, lists and joined texts go through the sandbox's
    filters.
    """

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.iter = _through("_watched", node.iter)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _through("_kept", node)

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _through("_kept", node)

    def visit_Dict(self, node: jinja2.nodes.Dict) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _through("_kept", node)

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _through("_kept", node) if node.ctx == "load" else node

    def visit_AssignBlock(self, node: jinja2.nodes.AssignBlock) -> jinja2.nodes.Node:
        self.generic_visit(node)
        # None: the filter applies to the block's own text.
        node.filter = _through("_kept", node.filter)
        return node


def _through(name: str, node: Any) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno if node else 1)


def _limit(value: Any) -> int:
    return MAX_LENGTH if isinstance(value, str) else MAX_ITEMS


def _size(value: Any) -> int:
    """The approximate length of the value as text, in characters, even if lists in the value share
    items. The depth of items also counts, because JSON is indented by depth. Stops soon after
    MAX_LENGTH.
    """
    size, weight = 0, _ITEM
    level: list[Iterable[Any]] = [(value,)]
    while level:
        inner: list[Iterable[Any]] = []
        for items in level:
            for item in items:
                size += weight
                if isinstance(item, str):
                    size += len(item)
                elif isinstance(item, int):
                    size += item.bit_length() // 3
                elif isinstance(item, dict):
                    inner += [item, item.values()]
                elif isinstance(item, _NESTED):
                    inner.append(item)
            if size > MAX_LENGTH:
                return size
        level = inner
        weight += 1
    return size


def _check_arguments(name: str, given: tuple[Any, ...]) -> None:
    """Raises TooMuch before a method or filter computes a result that is too large.

    `given`: the text itself, then the arguments.
    """
    texts = [value for value in given if isinstance(value, str)]
    numbers = [abs(value) for value in given[1:] if isinstance(value, int)]
    text, number = texts[0] if texts else "", max(numbers, default=0)
    if name in _PADDING:
        _check_length((1 + text.count("\n") + text.count("\t")) * number)
    elif name in ("batch", "slice"):
        _check_length(number, MAX_ITEMS)
    elif name == "tojson":
        # The arguments that are separators.
        pairs = [value for value in given[1:] if isinstance(value, list | tuple)]
        between = [part for pair in pairs for part in pair if isinstance(part, str)]
        indents = [value for value in given[1:] if isinstance(value, str)]
        _check_length(_size(given[0]) * max(number, *map(len, (*between, *indents)), 1))
    elif name in _FORMATTING and _WIDE.search(text):
        raise TooMuch("it pads to a width that is too large or not a literal number")
    elif name in _FORMATTING:
        _check_length((text.count("{") + text.count("%")) * _size(given[1:]))
    elif name == "replace" and len(texts) > 2:
        _check_length(text.count(texts[1]) * len(texts[2]))
    elif name == "join":
        lists = [value for value in given if isinstance(value, list | tuple)]
        parts = [part for value in lists for part in value if isinstance(part, str)]
        _check_length(sum(map(len, parts)) + sum(map(len, lists)) * max(map(len, texts), default=0))


def _check_length(length: int, limit: int = MAX_LENGTH) -> None:
    if length > limit:
        raise TooMuch(f"it makes more than {limit} characters or items at once")
