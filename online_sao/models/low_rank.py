"""The forward pass of a LoRA layer with fewer passes over its output. Owns how the low-rank part is added; peft owns everything else of the adapter.

peft computes W0·x + scale·(B·(A·x)) as a product, a scaling and a sum, each over the whole output. Here the product adds itself to W0·x, scaled.
"""

from __future__ import annotations

from typing import Any

from peft.tuners.lora.layer import Linear, LoraLayer
from peft.tuners.lora.variants import LoraVariant
from torch import Tensor, nn


class _Accumulated(LoraVariant):  # type: ignore[misc]
    @staticmethod
    def forward(module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: Any) -> Tensor:
        inner = module.lora_A[active_adapter](x)
        b, scale = module.lora_B[active_adapter].weight, module.scaling[active_adapter]
        # In place: nothing but this reads W0·x, and its own gradient needs no copy of it. Not through a view, whose gradient would be copied.
        return result.baddbmm_(inner, b.t().expand(len(inner), -1, -1), alpha=scale)


def accumulate_low_rank(model: nn.Module) -> None:
    """Have every adapter of ``model`` (plain LoRA without dropout or bias, on linear layers) add itself to its layer's output."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.lora_variant.update({name: _Accumulated() for name in module.lora_A})
