"""What a chat template can do with tools, found by trying it: does it show tools, does it carry calls and their results, and how are calls written?

Owns the trial conversation and what counts as yes. Knows nothing of tokens, requests or how calls are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from online_sao.inference.tool_calls import CLOSE, OPEN

_NAME = "trial_tool_name"
_RESULT = "trial result"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A trial.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "Where."}}, "required": ["place"]},
    },
}
_ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Go on."}]
_CALL = {"id": "call_0", "type": "function", "function": {"name": _NAME, "arguments": {"place": "trial place"}}}
_CALLED: list[dict[str, Any]] = [
    *_ASKED,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": _RESULT, "tool_call_id": "call_0", "name": _NAME},
]

TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What a template's own code may raise on a conversation it was not written for, beside jinja's errors."""


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """``shows_tools``: tools offered with a request reach the prompt. ``carries_calls``: so do an assistant's calls and the messages that
    answer them. ``parses_calls``: calls are written in a form tool_calls.py reads."""

    shows_tools: bool
    carries_calls: bool
    parses_calls: bool


def find_tool_support(apply_template: Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]) -> ToolSupport:
    """``apply_template(messages, tools)`` gives the prompt's text, or raises jinja's TemplateError or one of TEMPLATE_FAULTS."""
    from jinja2.exceptions import TemplateError

    def tried(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            return apply_template(messages, tools)
        except (TemplateError, *TEMPLATE_FAULTS):
            return ""

    shown = tried(_ASKED, [_TOOL])
    called = tried(_CALLED, [_TOOL])
    return ToolSupport(
        shows_tools=_NAME in shown and "place" in shown,
        carries_calls=_RESULT in called and called.count(_NAME) > shown.count(_NAME),
        parses_calls=any(_is_trial_call(body) for body in re.findall(f"{OPEN}(.*?){CLOSE}", called, re.DOTALL)),
    )


def _is_trial_call(body: str) -> bool:
    try:
        data = json.loads(body)
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("name") == _NAME and isinstance(data.get("arguments"), dict)
