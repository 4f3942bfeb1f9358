"""The frozen base's states of the microbatches at hand, computed once for all who read them: the anchor, and a value model that is a head on them.

Owns how long they are kept. Knows nothing of what is read there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from online_sao.experience.batching import PackedMicrobatch
from online_sao.models.backbone import Backbone

MOST_KEPT_BYTES = 2**30
"""States beyond that are computed again when they are asked for again."""


class BaseStates:
    """``keep``: whether anyone reads a microbatch twice; then its states stay as long as one is inside ``kept``. Threads may ask side by side, each
    for microbatches of its own."""

    def __init__(self, backbone: Backbone, *, keep: bool) -> None:
        self._backbone = backbone
        self._keep = keep
        self._states: dict[int, tuple[PackedMicrobatch, Tensor]] = {}
        self._bytes = 0

    @torch.no_grad()
    def of(self, microbatch: PackedMicrobatch) -> Tensor:
        """Final hidden states [T, H] of the base, on its device."""
        known = self._states.get(id(microbatch))
        if known is not None:
            return known[1]
        on_device = microbatch.to(self._backbone.device)
        states = self._backbone.hidden(None, on_device.input_ids, on_device.position_ids, on_device.segment_ids)
        if self._keep and self._bytes + states.nbytes <= MOST_KEPT_BYTES:
            self._states[id(microbatch)] = (microbatch, states)  # the microbatch too: another one could be given its id otherwise
            self._bytes += states.nbytes
        return states

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around the work on a batch; nothing is kept beyond it."""
        try:
            yield
        finally:
            self._states.clear()
            self._bytes = 0
