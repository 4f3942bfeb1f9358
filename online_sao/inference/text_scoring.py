"""How likely a text is under the weights that serve, a chunk at a time. Owns the forward pass; knows nothing of batches, versions or who waits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

CHUNK_TOKENS = 32
"""Tokens in one forward pass: about 0.2 s for the bundled model on two cores, an eighth of the longest step that sampling itself makes."""


class TextScorer:
    """One text under one set of weights: they must not change between the first ``advance`` and the last."""

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[int]) -> None:
        self._model = model
        self._ids = torch.tensor([list(token_ids)], device=model.device)
        self._cache = DynamicCache(config=model.config)
        self._done = 0
        self.logprobs: list[float] = []

    @property
    def finished(self) -> bool:
        # The last token is predicted, and predicts nothing.
        return self._done >= self._ids.shape[1] - 1

    @torch.inference_mode()
    def advance(self) -> None:
        """One more chunk: logprobs of the tokens that follow its own, untempered, in float32."""
        end = min(self._done + CHUNK_TOKENS, self._ids.shape[1] - 1)
        logits = self._model(self._ids[:, self._done : end], past_key_values=self._cache, use_cache=True).logits[0]
        targets = self._ids[0, self._done + 1 : end + 1]
        chosen = torch.log_softmax(logits.float(), dim=-1).gather(1, targets.unsqueeze(-1)).squeeze(-1)
        self.logprobs += chosen.tolist()
        self._done = end
