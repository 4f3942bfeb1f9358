"""The policy's forward pass: logits of action tokens, and their log-probabilities at the temperature they were sampled at.

Owns where a token's logits are read (one position before it). Knows nothing of behavior logprobs, losses or optimisers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from online_sao.models.backbone import Backbone


class PolicyModel:
    """The base model under the "policy" adapter; ``base_logits`` is the same model without it."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def parameters(self) -> dict[str, nn.Parameter]:
        return self._backbone.adapter_parameters("policy")

    def logits(self, input_ids: Tensor, position_ids: Tensor, action_positions: Tensor) -> Tensor:
        """Logits [N, V] that produced the tokens at ``action_positions`` [N] of a packed sequence [T], with gradient, not tempered."""
        return self._backbone.head(self._backbone.hidden("policy", input_ids, position_ids)[action_positions - 1])

    @torch.no_grad()
    def base_logits(self, input_ids: Tensor, position_ids: Tensor, action_positions: Tensor) -> Tensor:
        """As ``logits``, of the base policy."""
        return self._backbone.head(self._backbone.hidden(None, input_ids, position_ids)[action_positions - 1])


def token_logprobs(logits: Tensor, token_ids: Tensor, temperatures: Tensor) -> Tensor:
    """Log-probabilities [N] of ``token_ids`` [N] under softmax(logits / temperature). logits [N, V], temperatures [N] > 0."""
    tempered = logits.float() / temperatures.unsqueeze(-1)
    return tempered.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(tempered, dim=-1)
