"""Parses the text of one answer into parts, piece by piece. Pure; used by one request thread."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import regex

from switchyard.app.parts.arguments import ObjectEnd, whole_arguments
from switchyard.app.parts.call_formats import CallFormat, compiled
from switchyard.app.parts.parts import Arguments, Part, Reasoning, Text, ToolCall


class Tags(NamedTuple):
    """The texts before and after a model's thoughts."""

    start: str
    end: str


class PartParser:
    """Streams parts. The parser holds back only text that may be the beginning of a tag or a call.
    A call begins as soon as its name is complete and is one of `tools`. Its arguments are then
    passed on as they arrive. The call remains a call even if its arguments aren't JSON or never
    end. Text that only looks like a call remains text. White space before a call or around thoughts
    is dropped.
    """

    def __init__(
        self,
        format: CallFormat | None,
        tools: Mapping[str, str] = {},  # never modified
        tags: Tags | None = None,
        is_reasoning: bool = False,
        max_calls: int | None = None,
        calls_first: bool = False,
    ) -> None:
        """If `format` is None, the answer has no calls. `tools`: the client's name for each tool,
        keyed by the model's name. If `tags` is None, the answer has no thoughts. `is_reasoning`:
        the prompt ends with the opening tag. Text after call number `max_calls` is dropped.
        `calls_first`: an answer that doesn't begin with a call has no calls.
        """
        self.num_calls = 0
        self._format = format
        self._tools = tools
        self._tags = tags
        self._max_calls = max_calls
        self._calls_first = calls_first
        self._held = ""
        # Text after `_held`, and its number of characters. Joining each piece would take quadratic
        # time.
        self._pieces: list[str] = []
        self._num_new = 0
        self._wanted = 0  # characters to hold before the next search
        self._parts: list[Part] = []
        self._object = ObjectEnd()
        self._thought_tokens = 0
        self._has_thoughts = is_reasoning and tags is not None
        # The state: a method that takes text from the beginning of `_held`, and returns whether the
        # next state must run on the rest. `is_last`: no more text follows.
        self._state: Callable[[bool], bool] = self._answer
        if tags is not None:
            self._state = self._space if is_reasoning else self._opening
        self._behind_space: Callable[[bool], bool] = self._thoughts

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens in the thoughts, including their tags."""
        return self._thought_tokens if self._has_thoughts else 0

    @property
    def is_over(self) -> bool:
        """Whether call number `max_calls` is complete, so that all further text is dropped."""
        return self._state == self._nothing

    @property
    def is_plain(self) -> bool:
        """Whether all further text is plain, because thoughts are over and the answer has no
        calls.
        """
        return self._format is None and self._state == self._content

    @property
    def is_in_call(self) -> bool:
        """Whether the arguments of a call have begun and not ended."""
        return self._state == self._arguments

    def push(self, text: str, num_tokens: int = 0) -> list[Part]:
        """The parts that this piece of text completes. `num_tokens`: the number of tokens in the
        piece.
        """
        if self._state in (self._opening, self._thoughts) or self._is_before_thoughts:
            self._thought_tokens += num_tokens
        self._pieces.append(text)
        self._num_new += len(text)
        return self._run(is_last=False)

    def finish(self, is_cut: bool = False) -> list[Part]:
        """The parts of the text that is still held back. Called after the last text. `is_cut`: the
        model would have continued, so the incomplete beginning of thoughts or of a call is dropped.
        """
        self._join()
        if is_cut and self._state == self._opening and not self._held.isspace():
            self._held = ""
        if is_cut and self._state in (self._answer, self._content, self._behind_call):
            self._drop_begun_call()
        return self._run(is_last=True)

    def _join(self) -> None:
        self._held += "".join(self._pieces)
        self._pieces.clear()
        self._num_new = 0

    def _drop_begun_call(self) -> None:
        """Drops the end of the held text if that end may be the beginning of a call, unless it is
        white space.
        """
        if self._format is None:
            return
        patterns = (self._format.first, self._format.next, self._format.anywhere)
        begun = patterns[(self._answer, self._behind_call, self._content).index(self._state)]
        match = compiled(begun or self._format.anywhere).search(self._held, partial=True)
        if match is not None and match.partial and not match[0].isspace():
            self._held = self._held[: match.start()]

    @property
    def _is_before_thoughts(self) -> bool:
        return self._state == self._space and self._behind_space == self._thoughts

    def _run(self, is_last: bool) -> list[Part]:
        self._parts = []
        if len(self._held) + self._num_new >= self._wanted or is_last:
            self._join()
            self._wanted = 0
            while self._held and self._state(is_last):
                pass
        return self._parts

    def _wait(self) -> None:
        """Waits for more text, because the held text may become a call.

        A long text is searched again only after it has grown by a tenth. A search for each piece
        would take quadratic time.
        """
        if len(self._held) > 1000:
            self._wanted = len(self._held) * 11 // 10

    def _tell(self, part: Part) -> None:
        match part, self._parts[-1:]:
            case ((Text(text) | Reasoning(text) | Arguments(_, text)), _) if not text:
                pass
            case Text(text), [Text(before)]:
                self._parts[-1] = Text(before + text)
            case _:
                self._parts.append(part)

    def _opening(self, is_last: bool) -> bool:
        """Handles the start of an answer. Thoughts come first or not at all, because a later tag
        may be content.
        """
        assert self._tags is not None
        text = self._held.lstrip()
        if text.startswith(self._tags.start):
            self._held = text[len(self._tags.start) :]
            self._has_thoughts = True
            self._state = self._space
        elif self._tags.start.startswith(text) and not is_last:
            return False
        else:
            self._state = self._answer
        return True

    def _space(self, is_last: bool) -> bool:
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._behind_space
        return bool(self._held)

    def _thoughts(self, is_last: bool) -> bool:
        assert self._tags is not None
        end = self._search(rf"(?<!\s)\s*+{re.escape(self._tags.end)}", Reasoning, is_last)
        if end is None:
            return False
        self._held = self._held[end.end() :]
        self._behind_space = self._answer
        self._state = self._space
        return True

    def _answer(self, is_last: bool) -> bool:
        """Handles the first text after the thoughts, where calls of some formats have no mark."""
        self._state = self._content
        if self._format is None or self._format.first is None:
            return True
        return self._call_here(self._format.first, self._answer, is_last)

    def _content(self, is_last: bool) -> bool:
        if self._format is not None and self._calls_first:
            pattern = compiled(self._format.anywhere)
            if pattern.match(self._held, partial=not is_last) is None:
                self._format = None
        if self._format is None:
            self._tell(Text(self._held))
            self._held = ""
            return False
        if is_last and self.num_calls and self._held.isspace():
            self._held = ""
            return False
        call = self._search(self._format.anywhere, Text, is_last)
        if call is None:
            return False
        self._begin(call)
        return True

    def _search(
        self, pattern: str, kind: type[Text] | type[Reasoning], is_last: bool
    ) -> "regex.Match[str] | None":
        """The first match. Text before the match, or before a possible match, becomes a part."""
        match = compiled(pattern).search(self._held, partial=not is_last)
        start = len(self._held) if match is None else match.start()
        self._tell(kind(self._held[:start]))
        self._held = self._held[start:]
        if match is None or match.partial:
            self._wait()
            return None
        return compiled(pattern).match(self._held)

    def _call_here(self, pattern: str, state: Callable[[bool], bool], is_last: bool) -> bool:
        """Handles a call, or content, at the beginning of the held text. The parser stays in
        `state` until it is clear which of the two it is.
        """
        match = compiled(pattern).match(self._held, partial=not is_last)
        if match is None:
            self._state = self._content
        elif match.partial:
            self._state = state
            self._wait()
            return False
        elif match["name"] is None:  # the match is the end of all calls
            self._held = self._held[match.end() :]
            self._state = self._content
        else:
            self._begin(match)
        return True

    def _begin(self, call: "regex.Match[str]") -> None:
        assert self._format is not None
        groups = call.groupdict()
        name, arguments = groups["name"], whole_arguments(groups)
        if name not in self._tools or arguments is None:
            # No call can begin in the text before the name.
            self._tell(Text(self._held[: call.start("name")]))
            self._held = self._held[call.start("name") :]
            self._state = self._content
            return
        self._tell(ToolCall(self.num_calls, self._format.identifier(), self._tools[name]))
        if arguments:
            self._tell(Arguments(self.num_calls, arguments))
            self._held = self._held[call.end() :]
            self._end_call(self._end)
        else:
            self._held = self._held[call.start("begin") :]
            self._object = ObjectEnd()
            self._state = self._arguments

    def _arguments(self, is_last: bool) -> bool:
        end = self._object.find(self._held)
        self._tell(Arguments(self.num_calls, self._held[:end]))
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._end_call(self._rest)
        return True

    def _end_call(self, state: Callable[[bool], bool]) -> None:
        self.num_calls += 1
        self._state = self._nothing if self.num_calls == self._max_calls else state

    def _rest(self, is_last: bool) -> bool:
        assert self._format is not None
        return self._markup(self._format.rest, is_last)

    def _end(self, is_last: bool) -> bool:
        assert self._format is not None
        return self._markup(self._format.end, is_last)

    def _markup(self, pattern: str, is_last: bool) -> bool:
        """Drops the text that ends a call. If other text follows the call, drops superfluous braces
        instead.
        """
        match = compiled(pattern).match(self._held, partial=True)
        if match is None:
            self._state = self._braces
            return True
        if match.partial and not is_last:
            return False
        self._held = self._held[match.end() :]
        self._state = self._behind_call
        return True

    def _braces(self, is_last: bool) -> bool:
        self._held = re.sub(r"^[\s}]+", "", self._held)
        if self._held:
            self._state = self._behind_call
        return bool(self._held)

    def _behind_call(self, is_last: bool) -> bool:
        assert self._format is not None
        if self._format.next is None:
            self._state = self._content
            return True
        return self._call_here(self._format.next, self._behind_call, is_last)

    def _nothing(self, is_last: bool) -> bool:
        self._held = ""
        return False
