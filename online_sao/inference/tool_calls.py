"""Tool calls in a model's text: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, the Hermes form that Qwen and many others write.

Owns the form and how it is read from text that arrives in pieces. What does not parse stays text: nothing a model said is lost. Pure; knows nothing
of templates, tokens or HTTP.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Never

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments``: a JSON object as text, as OpenAI's contract has it."""

    name: str
    arguments: str


class ToolCallParser:
    """Splits one completion into text and calls. White space around calls belongs to neither and is dropped."""

    def __init__(self) -> None:
        self._pending = ""
        self._space = ""
        self._inside = False
        self._called = False

    def push(self, text: str) -> list[str | ToolCall]:
        """What is certain now, in order."""
        self._pending += text
        found: list[str | ToolCall] = []
        while self._step(found):
            pass
        return found

    def finish(self, *, complete: bool) -> list[str | ToolCall]:
        """No more text. ``complete``: the model ended by itself, so that a last call it did not close still counts if it is whole."""
        found: list[str | ToolCall] = []
        rest, self._pending = self._pending, ""
        if self._inside:
            self._inside = False
            call = _parse(rest) if complete else None
            if call is not None:
                self._call(call, found)
            else:
                self._text(OPEN + rest, found)
        else:
            self._text(rest, found)
        if self._space and not self._called:
            found.append(self._space)
        self._space = ""
        return found

    def _step(self, found: list[str | ToolCall]) -> bool:
        """Take one text or call off the front. False: more is needed to know."""
        if not self._inside:
            before, opening, after = self._pending.partition(OPEN)
            if opening:
                self._inside = True
                self._text(before, found)
                self._pending = after
                return True
            keep = next((n for n in range(min(len(OPEN) - 1, len(before)), 0, -1) if OPEN.startswith(before[-n:])), 0)
            self._text(before[: len(before) - keep], found)
            self._pending = before[len(before) - keep :]
            return False
        end = self._pending.find(CLOSE)
        while end >= 0:
            body = self._pending[:end]
            call = _parse(body)
            if call is not None or not _inside_a_string(body):
                self._inside = False
                self._pending = self._pending[end + len(CLOSE) :]
                if call is not None:
                    self._call(call, found)
                else:
                    self._text(OPEN + body + CLOSE, found)
                return True
            end = self._pending.find(CLOSE, end + 1)
        return False

    def _text(self, text: str, found: list[str | ToolCall]) -> None:
        """White space at the end is held back until what follows it is known."""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            found.append(shown)

    def _call(self, call: ToolCall, found: list[str | ToolCall]) -> None:
        self._space = ""
        self._called = True
        found.append(call)


def _parse(body: str) -> ToolCall | None:
    try:
        # Models write line breaks inside strings as they are.
        data = json.loads(body.strip(), strict=False, parse_constant=_refuse)
        if not isinstance(data, dict) or not isinstance(data.get("name"), str) or not _NAME.fullmatch(data["name"]):
            return None
        arguments = data.get("arguments", data.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False, parse_constant=_refuse)
        return ToolCall(data["name"], _dump(arguments)) if isinstance(arguments, dict) else None
    except (ValueError, RecursionError):
        return None


def _dump(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can carry
        return json.dumps(arguments, allow_nan=False)
    return text


def _inside_a_string(body: str) -> bool:
    """Whether the JSON breaks off inside a string: then the closing mark was part of it."""
    try:
        json.JSONDecoder(strict=False).raw_decode(body.lstrip())
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


def _refuse(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")
