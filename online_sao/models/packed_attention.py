"""Attention over a packed row without the pairs that its mask forbids. Owns the way from a row to blocks, one a segment, and back; knows no model.

A row of S segments of L tokens has (S·L)² pairs of tokens, of which a segment may use the L² of its own and those with the shared prefix. So queries
are laid out by segment, each block beside the prefix and its own keys: the same sums as over the masked row, without the masked terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

PACKED_ATTENTION = "online_sao_packed"
"""Its name as an ``attn_implementation`` of transformers. Without ``blocks`` it is ``sdpa``."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The S segments of a row of T tokens (the prefix is one of them), each padded to the longest with copies of its last token."""

    queries: Tensor
    """[S, L] long: places in T."""
    keys: Tensor
    """[S, K] long: places in T, the prefix first."""
    is_key: Tensor
    """[S, K] bool: False for padding."""
    places: Tensor
    """[T] long: where in the S·L queries each token of the row stands."""

    def mask(self, row_mask: Tensor) -> Tensor:
        """[T, T], True where the row may look at the column → the same for the blocks, [S, 1, L, K]."""
        allowed = row_mask[self.queries[:, :, None], self.keys[:, None, :]] & self.is_key[:, None, :]
        return allowed[:, None]


def find_blocks_of(segment_ids: Tensor) -> Blocks | None:
    """segment_ids [T] of experience.batching: equal ones stand together, 0 is the prefix. None where blocks would save nothing."""
    kinds, counts = torch.unique_consecutive(segment_ids, return_counts=True)
    lengths = counts.tolist()
    prefix = lengths[0] if int(kinds[0]) == 0 else 0
    own = [0 if prefix and number == 0 else length for number, length in enumerate(lengths)]
    queries_width, keys_width = max(lengths), prefix + max(own)
    if len(lengths) * queries_width * keys_width >= len(segment_ids) ** 2:
        return None
    device = segment_ids.device
    length = counts[:, None]
    start = (counts.cumsum(0) - counts)[:, None]
    in_query = torch.arange(queries_width, device=device)
    queries = start + torch.minimum(in_query, length - 1)
    own_length = torch.tensor(own, device=device)[:, None]
    in_key = torch.arange(keys_width, device=device)
    in_own = in_key - prefix
    keys = torch.where(in_key < prefix, in_key, start + torch.minimum(in_own.clamp(min=0), length - 1))
    is_key = (in_key < prefix) | (in_own < own_length)
    places = (torch.arange(len(lengths), device=device)[:, None] * queries_width + in_query)[in_query < length]
    return Blocks(queries, keys, is_key, places)


def _packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, blocks: Blocks | None = None, **options: Any
) -> tuple[Tensor, Any]:
    """query, key, value [1, heads, T, width] → [1, T, heads, width], as every attention of transformers. ``attention_mask``: of the ``blocks`` where
    there are any (``Blocks.mask``, made once for all layers)."""
    if blocks is None:
        result: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    queries, keys, values = _laid_out(query, blocks.queries), _laid_out(key, blocks.keys), _laid_out(value, blocks.keys)
    attended, _ = sdpa_attention_forward(module, queries, keys, values, attention_mask, **options)
    return _rows(attended.flatten(0, 1).flatten(1), blocks.places).view(1, len(blocks.places), *attended.shape[2:]), None


def _laid_out(row: Tensor, places: Tensor) -> Tensor:
    """[1, heads, T, width] at ``places`` [S, L] → [S, heads, L, width]."""
    _, heads, _, width = row.shape
    return _rows(row[0].transpose(0, 1).flatten(1), places).view(*places.shape, heads, width).transpose(1, 2)


def _rows(table: Tensor, places: Tensor) -> Tensor:
    # The gradient of an embedding is added up by rows; that of an index one element at a time.
    return functional.embedding(places, table)


AttentionInterface.register(PACKED_ATTENTION, _packed_attention)
