"""Attention by blocks is attention over the masked row, in values and gradients, for every architecture that can learn here."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, MistralConfig, Qwen2Config

from online_sao.models import backbone, packed_attention
from online_sao.models.backbone import Backbone
from online_sao.models.packed_attention import find_blocks_of

SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2}
MODELS = {
    "llama": LlamaConfig(**GROUPED),
    "qwen2": Qwen2Config(**GROUPED),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "sliding window": MistralConfig(**GROUPED, sliding_window=3),
}


def test_blocks_by_hand():
    """A prefix of 2, then segments of 3, 3 and 1: rows 0-1, 2-4, 5-7, 8."""
    blocks = find_blocks_of(torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 3]))
    assert blocks is not None
    assert blocks.queries.tolist() == [[0, 1, 1], [2, 3, 4], [5, 6, 7], [8, 8, 8]]
    assert blocks.keys.tolist() == [[0, 1, 0, 1, 1], [0, 1, 2, 3, 4], [0, 1, 5, 6, 7], [0, 1, 8, 8, 8]]
    assert blocks.is_key.tolist() == [[True] * 2 + [False] * 3, [True] * 5, [True] * 5, [True] * 3 + [False] * 2]
    assert blocks.places.tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("segments", [[0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0, 1, 2]])
def test_no_blocks_where_they_save_nothing(segments):
    assert find_blocks_of(torch.tensor(segments)) is None


@pytest.mark.parametrize("prefix", [0, 5])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_give_what_the_masked_row_gives(name, prefix, monkeypatch):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(MODELS[name])
    body = Backbone(model, lora_rank=2, lora_alpha=4, seed=0)
    for parameter in body.adapter_parameters("policy").values():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(2))
    lengths = [4, 7, 5, 6]
    segments = torch.tensor([0] * prefix + [number for number, length in enumerate(lengths, 1) for _ in range(length)])
    places = torch.tensor([*range(prefix), *(prefix + place for length in lengths for place in range(length))])
    ids = torch.randint(40, (len(segments),), generator=torch.Generator().manual_seed(3))
    used = []
    monkeypatch.setattr(packed_attention, "_laid_out", _spy(packed_attention._laid_out, used))

    def result() -> tuple[torch.Tensor, list[torch.Tensor]]:
        hidden = body.hidden("policy", ids, places, segments)
        parameters = list(body.adapter_parameters("policy").values())
        return hidden.detach(), list(torch.autograd.grad(hidden.sin().sum(), parameters))

    hidden, gradients = result()
    assert len(used) == 3 * 2, "the blocks reach the attention of every layer"
    monkeypatch.setattr(backbone, "find_blocks_of", lambda segment_ids: None)
    row, row_gradients = result()
    assert len(used) == 3 * 2
    torch.testing.assert_close(hidden, row, atol=2e-5, rtol=0)
    for found, expected in zip(gradients, row_gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def _spy(inner, calls):
    def laid_out(row, places):
        calls.append(places)
        return inner(row, places)

    return laid_out
