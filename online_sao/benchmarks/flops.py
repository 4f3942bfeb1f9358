"""What one SAO update must compute, in floating point operations (a multiply-add is 2), and what a computation really did.

Owns the account and nothing measured in seconds. Per token of a packed row, with N_b the weights of the blocks' matrices:

    forward of the blocks              2·N_b, and 4·heads·width·pairs in attention; pairs: (query, key) that the mask allows, no others
    backward through frozen weights    2·N_b (gradients of inputs), less the matrices below the first adapted one, where nothing is left to learn
    backward of attention              twice its forward
    LoRA of rank r, per matrix         2·r·(in + out) forward; twice that backward, less 2·r·in where its input needs no gradient
    output matrix, per action token    2·H·V forward, 2·H·V backward
    value head, per action token       2·H forward, 4·H backward

Sums and products element by element, norms, softmax and the optimiser's step are not counted: time spent there is a loss against the peak. One
update: K value updates (forward and backward), a forward for fresh values where the recipe wants them, one forward of the base (its KL is gated, also
where the anchor is off), one forward and backward of the policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedModel

from online_sao.algorithm.recipes import Recipe
from online_sao.experience.batching import TrainBatch
from online_sao.models.projections import find_projections


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer inside the blocks."""

    inputs: int
    outputs: int
    is_mlp: bool
    layer: int
    reads_block_input: bool
    """Whether its input is the normed input of attention or of the MLP: the first matrices of either."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as the account sees it. ``heads_width``: number of attention heads times the width of one."""

    matrices: tuple[Matrix, ...]
    layers: int
    heads_width: int
    hidden: int
    vocabulary: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Shape:
        """Of an unwrapped model of Llama's kind: the matrices that read a block's input are those that are ``hidden`` wide and do not write to it."""
        config = model.config
        found = find_projections(model)
        matrices = []
        for name in found.names:
            outputs, inputs = model.get_submodule(name).weight.shape
            closes = re.search(r"(o_proj|out_proj|down_proj|fc2|dense|c_proj|dense_4h_to_h)$", name) is not None
            number = re.search(r"\.(\d+)\.", name)
            matrices.append(Matrix(inputs, outputs, name in found.mlp, int(number[1]) if number else 0, not closes))
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        vocabulary = model.get_output_embeddings().weight.shape[0]
        return cls(tuple(matrices), config.num_hidden_layers, config.num_attention_heads * width, config.hidden_size, vocabulary)

    @property
    def block_weights(self) -> int:
        return sum(matrix.inputs * matrix.outputs for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class Work:
    """What a batch asks for: tokens T whose states are computed, action tokens N, pairs of tokens that may attend to each other."""

    tokens: int
    action_tokens: int
    pairs: int

    @classmethod
    def of(cls, batch: TrainBatch) -> Work:
        rows = batch.microbatches
        return cls(sum(len(row.input_ids) for row in rows), batch.num_action_tokens, sum(pairs(row.segment_ids) for row in rows))


def pairs(segment_ids: Tensor) -> int:
    """Pairs (query, key) of a packed row: a token sees itself, earlier ones of its own segment, and all of the prefix (segment 0)."""
    lengths: list[int] = torch.unique(segment_ids, return_counts=True)[1].tolist()
    prefix = int((segment_ids == 0).sum())
    own = lengths[1:] if prefix else lengths
    return prefix * (prefix + 1) // 2 + sum(length * prefix + length * (length + 1) // 2 for length in own)


def forward(shape: Shape, work: Work) -> int:
    """One pass through the blocks without an adapter."""
    return 2 * shape.block_weights * work.tokens + 4 * shape.heads_width * work.pairs * shape.layers


def low_rank_forward(shape: Shape, work: Work, rank: int, *, mlp_only: bool) -> int:
    return sum(2 * rank * (matrix.inputs + matrix.outputs) for matrix in _adapted(shape, mlp_only)) * work.tokens


def backward(shape: Shape, work: Work, rank: int, *, mlp_only: bool) -> int:
    """From the last states to the gradients of every LoRA matrix."""
    frozen = sum(2 * matrix.inputs * matrix.outputs for matrix in shape.matrices if _needs_input_gradient(matrix, mlp_only))
    low_rank = 0
    for matrix in _adapted(shape, mlp_only):
        low_rank += 4 * rank * matrix.outputs + 2 * rank * matrix.inputs
        if _needs_input_gradient(matrix, mlp_only):
            low_rank += 2 * rank * matrix.inputs
    attention = 8 * shape.heads_width * work.pairs * (shape.layers - (1 if mlp_only else 0))
    return (frozen + low_rank) * work.tokens + attention


def head(shape: Shape, work: Work) -> int:
    """The output matrix once, forward or backward, on the action tokens."""
    return 2 * shape.hidden * shape.vocabulary * work.action_tokens


def update(shape: Shape, work: Work, recipe: Recipe, rank: int) -> dict[str, int]:
    """One update after the first, by part."""
    value_forward, value_backward = 2 * shape.hidden * work.action_tokens, 4 * shape.hidden * work.action_tokens
    if recipe.value_adapter != "none":  # else it reads the base's states
        mlp_only = recipe.value_adapter == "mlp"
        value_forward += forward(shape, work) + low_rank_forward(shape, work, rank, mlp_only=mlp_only)
        value_backward += backward(shape, work, rank, mlp_only=mlp_only)
    passes = recipe.value_updates if recipe.uses_values else 0
    return {
        "value updates": passes * (value_forward + value_backward),
        "fresh values": value_forward if passes and recipe.fresh_values else 0,
        "base": forward(shape, work) + head(shape, work),
        "policy forward": forward(shape, work) + low_rank_forward(shape, work, rank, mlp_only=False) + head(shape, work),
        "policy backward": backward(shape, work, rank, mlp_only=False) + head(shape, work),
    }


def _adapted(shape: Shape, mlp_only: bool) -> list[Matrix]:
    return [matrix for matrix in shape.matrices if matrix.is_mlp or not mlp_only]


def _needs_input_gradient(matrix: Matrix, mlp_only: bool) -> bool:
    """Whether anything that learns lies below: not in the first block, before the first adapted matrix."""
    if matrix.layer > 0:
        return True
    if mlp_only:
        return matrix.is_mlp and not matrix.reads_block_input
    return matrix.is_mlp or not matrix.reads_block_input


class Executed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every matrix product and attention is counted as it is executed, those without gradient and recomputed ones too: by kind in ``flops``.

    torch's own FlopCounterMode knows no attention on a CPU, and its module hooks fail on inputs that require a gradient they will not be given.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in _ATTENTION:
            self._add("attention", _ATTENTION[packet](args))
        elif packet in _PRODUCTS:
            self._add("products", _PRODUCTS[packet](*args, **(kwargs or {}), out_val=result))
        return result

    def _add(self, kind: str, flops: int) -> None:
        self.flops[kind] = self.flops.get(kind, 0) + int(flops)

    @property
    def total(self) -> int:
        return sum(self.flops.values())


def _count(formula: Callable[..., Any], tensors: Sequence[Tensor]) -> int:
    return int(formula(*(tensor.shape for tensor in tensors)))


_PRODUCTS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten.addmm_: flop_registry[torch.ops.aten.addmm],
    torch.ops.aten.baddbmm_: flop_registry[torch.ops.aten.baddbmm],
}
_ATTENTION: dict[Any, Callable[[Any], int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda args: _count(sdpa_flop_count, args[:3]),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda args: _count(sdpa_backward_flop_count, args[:4]),
}
