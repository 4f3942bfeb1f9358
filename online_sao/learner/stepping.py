"""One optimiser step, or none: what policy and value training have in common. Owns the rule that a step that is not finite is not taken."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from online_sao.algorithm.recipes import Recipe
from online_sao.experience.batching import PackedMicrobatch
from online_sao.learner.ranks import Ranks


def make_optimizer(parameters: Mapping[str, nn.Parameter], learning_rate: float, recipe: Recipe) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        list(parameters.values()), lr=learning_rate, betas=(recipe.adam_beta1, recipe.adam_beta2), weight_decay=recipe.weight_decay, fused=True
    )


def trained_parameters(optimizer: torch.optim.AdamW) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def step(optimizer: torch.optim.AdamW, loss: float, gradient_clip: float, ranks: Ranks) -> float | None:
    """Add up the gradients of all ranks, clip and apply. ``loss`` is that of the whole batch. Returns the gradient norm before clipping; None if it
    or the loss is not finite, and then nothing has moved, on no rank."""
    parameters = trained_parameters(optimizer)
    ranks.sum_gradients(parameters)
    norm = float(nn.utils.clip_grad_norm_(parameters, gradient_clip))
    finite = math.isfinite(loss) and math.isfinite(norm)
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm if finite else None


def forward_inputs(microbatch: PackedMicrobatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the forward passes of models/ take."""
    return microbatch.input_ids, microbatch.position_ids, microbatch.segment_ids, microbatch.state_positions
