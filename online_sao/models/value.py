"""The value model's forward pass: the expected return of an action token, read from the state that is about to produce it.

Owns the scalar head and where a value is read. Knows nothing of targets, losses or optimisers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from online_sao.models.backbone import Backbone


class ValueModel:
    """The base model under the "value" adapter (MLP projections only, where attention is frozen) with a scalar head on the final hidden state.

    The head starts at zero, so every value is 0 until the first value update: the middle of the reward range, and no noise in the first
    advantages. The head learns first, and through it the adapter.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self.head = nn.Linear(backbone.hidden_size, 1, device=backbone.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def device(self) -> torch.device:
        return self._backbone.device

    def parameters(self) -> dict[str, nn.Parameter]:
        head = {f"value_head.{name}": parameter for name, parameter in self.head.named_parameters()}
        return {**self._backbone.adapter_parameters("value"), **head}

    def active(self) -> AbstractContextManager[None]:
        """Around a forward pass and its backward pass, where other threads compute with the same backbone (Backbone.under)."""
        return self._backbone.under("value")

    def values(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, state_positions: Tensor) -> Tensor:
        """V(a_t) [N] of N tokens (action tokens, as a rule) of a packed row [T], read at ``state_positions``: the states that produce them. Read at
        a_t itself the baseline would depend on the action and bias the gradient. With gradient."""
        states = self._backbone.hidden("value", input_ids, position_ids, segment_ids)[state_positions]
        values: Tensor = self.head(states).squeeze(-1)
        return values
