"""Calls are found however the text is cut; what is no call stays text, to the letter; white space around calls is dropped."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.inference.tool_calls import ToolCall, ToolCallParser


def parsed(pieces, *, complete=True):
    """(all text, calls) of a completion that comes in pieces."""
    parser = ToolCallParser()
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish(complete=complete)
    assert "" not in parts
    return "".join(part for part in parts if isinstance(part, str)), [part for part in parts if isinstance(part, ToolCall)]


def call(name="f", arguments=None):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments or {}}, ensure_ascii=False)}\n</tool_call>"


def test_text_and_calls_in_order():
    text, calls = parsed([f"I look.\n{call('a', {'x': 1})}\n{call('b', {'y': 'ü🙂'})}\n"])
    assert text == "I look."
    assert calls == [ToolCall("a", '{"x": 1}'), ToolCall("b", '{"y": "ü🙂"}')]


def test_text_without_calls_comes_through_to_the_letter():
    for text in ("  a < b <tool <tool_cal\n\n", "\n", "", "</tool_call>", "a <tool_callx>"):
        assert parsed([text]) == (text, [])


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no json",
        "[1]",
        "3",
        '{"arguments": {}}',
        '{"name": 3}',
        '{"name": "a b"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": NaN}',
        '{"name": "f", "arguments": {"x": Infinity}}',
        '{"name": "f", "arguments": "no object"}',
        "[" * 5000,
        '{"name": "f"} {"name": "g"}',
    ],
    ids=lambda body: body[:30],
)
def test_what_is_no_call_stays_text(body):
    text = f"a <tool_call>{body}</tool_call> b"
    assert parsed([text]) == (text, [])
    assert parsed([*text]) == (text, [])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name": "f"}', ToolCall("f", "{}")),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', ToolCall("f", '{"x": 1}')),
        ('{"name": "f", "parameters": {"x": 1}}', ToolCall("f", '{"x": 1}')),
        ('{"name": "f", "arguments": {"x": "two\nlines"}}', ToolCall("f", '{"x": "two\\nlines"}')),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', ToolCall("f", '{"x": "\\ud800"}')),
        ('{"name": "f", "arguments": {"x": "</tool_call> said"}}', ToolCall("f", '{"x": "</tool_call> said"}')),
    ],
)
def test_forms_that_models_write(body, expected):
    for pieces in ([f"<tool_call>{body}</tool_call>"], [*f"<tool_call>{body}</tool_call>"]):
        assert parsed(pieces) == ("", [expected])
    json.loads(expected.arguments)
    expected.arguments.encode()


def test_a_call_left_open_counts_only_where_the_model_ended_by_itself():
    text = '<tool_call>\n{"name": "f", "arguments": {}}'
    assert parsed([text]) == ("", [ToolCall("f", "{}")])
    assert parsed([text], complete=False) == (text, [])
    assert parsed([text[:-4]]) == (text[:-4], [])


def test_text_is_shown_as_soon_as_it_cannot_be_a_call():
    parser = ToolCallParser()
    assert parser.push("one <tool") == ["one"]
    assert parser.push("box>") == [" <toolbox>"]


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["a", " ", "\n", "<", "<tool_call>", "</tool_call>", call(), call("g", {"k": "v"}), "{", '"']), max_size=8),
    data=st.data(),
)
def test_no_cutting_changes_what_is_found(parts, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(pieces) == parsed([text])
