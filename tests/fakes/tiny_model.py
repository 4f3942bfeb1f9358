"""Models of benchmarks/tiny_model.py's size, one of which calls tools: all that works on the real one, in milliseconds."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from transformers import AddedToken, LlamaForCausalLM

from online_sao.benchmarks.random_adapter import write_random_adapter
from online_sao.benchmarks.tiny_model import built_once, tiny_config, tiny_model
from online_sao.config import PolicySettings
from online_sao.models.catalog import load_tokenizer, obtain

__all__ = ["HERMES_TEMPLATE", "TOOL_CALL", "bundled_model", "tiny_model", "tool_calling_model", "write_random_adapter"]

_TOOL_FOLDER = "online-sao-tool-calling-model-2"

TOOL_CALL = (
    "I will look.",
    "\n<tool_call>\n",
    '{"name": "get_weather", ',
    '"arguments": {"city": "Par',
    "is 🙂",
    '"}}',
    "\n</tool_call>",
)
"""What ``tool_calling_model`` answers, token by token, before the end of its turn."""

HERMES_TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '# Tools\n<tools>' }}{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or (message.role == 'assistant' and not message.tool_calls) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
"""Shows tools and carries calls as Qwen's and Hermes' templates do."""


def bundled_model() -> Path:
    """The bundled model's folder, converted on first use."""
    return obtain("bundled", PolicySettings().cache_dir)


def tool_calling_model() -> Path:
    """Folder of a Llama whose every answer is TOOL_CALL, nearly surely at temperature 1, under HERMES_TEMPLATE. Its weights follow one token from
    the one before; the line break that opens an answer begins the chain."""
    return built_once(_TOOL_FOLDER, _build_tool_calling)


def _build_tool_calling(folder: Path) -> None:
    tokenizer = load_tokenizer(bundled_model())
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in TOOL_CALL])
    tokenizer.chat_template = HERMES_TEMPLATE
    model = LlamaForCausalLM(tiny_config(tokenizer, num_hidden_layers=1, tie_word_embeddings=False))
    (line_break,) = tokenizer.encode("\n", add_special_tokens=False)
    chain = [line_break, *(tokenizer.convert_tokens_to_ids(text) for text in TOOL_CALL), tokenizer.eos_token_id]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        for place, (token, following) in enumerate(itertools.pairwise(chain)):
            model.model.embed_tokens.weight[token, place] = 1.0
            # The norm makes the 1 an 8 (the root of the width): a logit of 24 against 0 for everything else.
            model.lm_head.weight[following, place] = 3.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
