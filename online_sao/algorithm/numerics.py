"""Float safety for the other modules: which precision to compute in, and a softmax that survives broken rows. Knows no reinforcement learning."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest dtype among ``tensors``, and never below float32: half precision cannot resolve log-ratios near 0."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


class TemperedLogProbs(NamedTuple):
    """``logprobs[N, V]`` over the whole vocabulary; ``valid[N]`` False where the row could not be normalised (its logprobs are then uniform)."""

    logprobs: Tensor
    valid: Tensor

    def of(self, token_ids: Tensor) -> Tensor:
        """[N]: of one token a row, ``token_ids[N]``."""
        return self.logprobs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)


def tempered_log_softmax(logits: Tensor, temperatures: Tensor) -> TemperedLogProbs:
    """log softmax(logits / temperature), row by row, in float32 or wider.

    ``logits[N, V]``, ``temperatures[N]``. A row with a NaN or an infinity, a spread that overflows, or a temperature that is not positive and
    finite is replaced by zeros *before* the division and the exponential, so that it adds neither value nor gradient (NaN · 0 is NaN).
    """
    dtype = compute_dtype(logits, temperatures)
    logits, temperatures = logits.to(dtype), temperatures.to(dtype)
    with torch.no_grad():
        usable_temperature = torch.isfinite(temperatures) & (temperatures > 0)
        divisor = torch.where(usable_temperature, temperatures, torch.ones_like(temperatures)).unsqueeze(-1)
        highest, lowest = logits.amax(dim=-1, keepdim=True) / divisor, logits.amin(dim=-1, keepdim=True) / divisor
        valid = usable_temperature & torch.isfinite(highest - lowest).squeeze(-1)
    # Nearly always there is nothing to replace and nothing to divide by, and each would go through N · V numbers, and once more for the gradient.
    clean = logits if bool(valid.all()) else torch.where(valid.unsqueeze(-1), logits, torch.zeros_like(logits))
    tempered = clean if bool((divisor == 1).all()) else clean / divisor
    return TemperedLogProbs(torch.log_softmax(tempered, dim=-1), valid)
