"""An adapter that adds itself to its layer's output gives what peft's own forward gives, and the same gradients."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear
from torch import nn

from online_sao.models.low_rank import accumulate_low_rank


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("input_learns", [False, True])
def test_the_layer_and_its_gradients(bias, input_learns):
    generator = torch.Generator().manual_seed(0)
    model = get_peft_model(nn.Sequential(nn.Linear(6, 5, bias=bias)), LoraConfig(r=2, lora_alpha=6, target_modules=["0"]))
    layer = model.base_model.model[0]
    assert isinstance(layer, Linear)
    for parameter in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
        nn.init.normal_(parameter, generator=generator)
    x = torch.randn(1, 4, 6, generator=generator, requires_grad=input_learns)
    learning = [layer.lora_A["default"].weight, layer.lora_B["default"].weight, *([x] if input_learns else [])]

    def result():
        output = model(x)
        return output.detach().clone(), torch.autograd.grad(output.sin().sum(), learning)

    expected, expected_gradients = result()
    accumulate_low_rank(model)
    output, gradients = result()
    a, b = (half["default"].weight for half in (layer.lora_A, layer.lora_B))
    by_hand = layer.base_layer(x) + 3.0 * x @ a.T @ b.T
    torch.testing.assert_close(output, by_hand.detach())
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients, expected_gradients)
