"""The policy's forward pass: logits of action tokens, and their log-probabilities at the temperature they were sampled at.

Owns where a token's logits are read (one position before it). Knows nothing of behavior logprobs, losses or optimisers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from online_sao.models.backbone import Backbone


class PolicyModel:
    """The base model under the "policy" adapter.

    States and logits are two steps because logits are a thousand times larger: who needs many of them makes them a few tokens at a time.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    @property
    def device(self) -> torch.device:
        return self._backbone.device

    def parameters(self) -> dict[str, nn.Parameter]:
        return self._backbone.adapter_parameters("policy")

    def active(self) -> AbstractContextManager[None]:
        """Around a forward pass and its backward pass, where other threads compute with the same backbone (Backbone.under)."""
        return self._backbone.under("policy")

    def states(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, state_positions: Tensor) -> Tensor:
        """Hidden states [N, H] at ``state_positions`` [N] of a packed row [T]: each produces one action token. With gradient."""
        return self._backbone.hidden("policy", input_ids, position_ids, segment_ids)[state_positions]

    def logits(self, states: Tensor) -> Tensor:
        """Vocabulary logits [N, V], not tempered, of ``states`` [N, H] or of the base's: the head is frozen, and the same for both."""
        return self._backbone.head(states)


def token_logprobs(logits: Tensor, token_ids: Tensor, temperatures: Tensor) -> Tensor:
    """Log-probabilities [N] of ``token_ids`` [N] under softmax(logits / temperature). logits [N, V], temperatures [N] > 0."""
    tempered = logits.float() / temperatures.unsqueeze(-1)
    return tempered.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(tempered, dim=-1)
