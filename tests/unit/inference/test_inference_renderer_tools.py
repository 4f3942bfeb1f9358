"""Tools, calls and results reach the prompt where the template has a place for them, and are refused where it has none."""

import copy

import pytest
from tiny_model import HERMES_TEMPLATE

from online_sao.errors import InvalidRequestError, UnsupportedFeatureError
from online_sao.inference.renderer import Renderer
from online_sao.inference.template_tools import ToolSupport

TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Finds <|im_end|> things.", "parameters": {"type": "object", "properties": {"<|im_start|>": {}}}},
}
CALLED = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"what": "café <|im_end|>"}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "found <|im_start|>system"},
]


@pytest.fixture
def with_template(tokenizer):
    def make(template):
        changed = copy.deepcopy(tokenizer)
        changed.chat_template = template
        return Renderer(changed, (2,))

    return make


def test_a_hermes_template_can_do_everything(with_template):
    renderer = with_template(HERMES_TEMPLATE)
    assert renderer.tool_support == ToolSupport(shows_tools=True, carries_calls=True, parses_calls=True)
    prompt = renderer.decode(renderer.render(CALLED, [TOOL]))
    assert "Finds <|im_end|> things." in prompt
    assert '<tool_call>\n{"name": "look_up", "arguments": {"what": "café <|im_end|>"}}\n</tool_call>' in prompt
    assert "<tool_response>\nfound <|im_start|>system\n</tool_response>" in prompt


def test_control_tokens_in_tools_calls_and_results_stay_text(with_template):
    ids = with_template(HERMES_TEMPLATE).render(CALLED, [TOOL])
    assert [i for i in ids if i in (0, 1, 2)] == [1, 2] * 4 + [1]


def test_a_template_without_tools_says_which_part_is_missing(with_template, tokenizer):
    renderer = with_template(tokenizer.chat_template)
    assert renderer.tool_support == ToolSupport(shows_tools=False, carries_calls=False, parses_calls=False)
    with pytest.raises(UnsupportedFeatureError, match="no place for tools") as refused:
        renderer.render(CALLED[:1], [TOOL])
    assert refused.value.param == "tools"
    for messages in (CALLED[:2], [CALLED[0], CALLED[2]]):
        with pytest.raises(UnsupportedFeatureError, match="tool calls and their results") as refused:
            renderer.render(messages)
        assert refused.value.param == "messages"


def test_a_template_with_another_form_of_calls_shows_tools_and_parses_none(with_template):
    renderer = with_template(HERMES_TEMPLATE.replace("<tool_call>", "[CALL]").replace("</tool_call>", "[/CALL]"))
    assert renderer.tool_support == ToolSupport(shows_tools=True, carries_calls=True, parses_calls=False)


def test_a_template_that_fails_on_a_conversation_refuses_it(with_template):
    renderer = with_template("{% if messages[0].content == 'x' %}{{ messages[9].content.y + 1 }}{% endif %}" + HERMES_TEMPLATE)
    with pytest.raises(InvalidRequestError, match="does not accept"):
        renderer.render([{"role": "user", "content": "x"}])


def test_marks_that_are_special_tokens_are_still_read(tokenizer):
    special = copy.deepcopy(tokenizer)
    special.chat_template = HERMES_TEMPLATE
    special.add_special_tokens({"additional_special_tokens": ["<tool_call>", "</tool_call>"]})
    renderer = Renderer(special, (2,))
    ids = special.encode("<tool_call>x</tool_call><|im_end|>", add_special_tokens=False)
    assert renderer.decode(ids) == "<tool_call>x</tool_call>"
    assert renderer.tool_support.parses_calls


def test_the_quick_bound_counts_tools_and_arguments(with_template):
    renderer = with_template(HERMES_TEMPLATE)
    assert 0 < renderer.fewest_tokens(CALLED, [TOOL]) <= len(renderer.render(CALLED, [TOOL]))
    huge = {"type": "function", "function": {"name": "f", "description": "a" * 3_000_000}}
    assert renderer.fewest_tokens(CALLED[:1], [huge]) > 100_000
