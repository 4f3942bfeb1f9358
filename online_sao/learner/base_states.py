"""The frozen base's states of the microbatches at hand, computed once for all who read them: the anchor, and a value model that is linear in them.

Owns how long they are kept. Knows nothing of what is read there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from online_sao.experience.batching import PackedMicrobatch
from online_sao.models.backbone import Backbone, BaseViews

MOST_KEPT_BYTES = 2**30
"""States beyond that are computed again when they are asked for again."""


class BaseStates:
    """``views``: whether somebody looks at more than the final states. Then what was computed of a microbatch is kept as long as one is inside
    ``kept``, for the next who asks. Threads may ask side by side, each for microbatches of its own."""

    def __init__(self, backbone: Backbone, *, views: bool, keep: bool = True) -> None:
        self._backbone = backbone
        self._wants_views = views
        self._keep = views and keep
        self._known: dict[int, tuple[PackedMicrobatch, BaseViews]] = {}
        self._bytes = 0
        self._inside = False

    @torch.no_grad()
    def of(self, microbatch: PackedMicrobatch) -> Tensor:
        """Final hidden states [T, H] of the base, on its device."""
        if self._wants_views:
            return self.views(microbatch).final
        return self._backbone.hidden(None, *_inputs(microbatch, self._backbone))

    @torch.no_grad()
    def views(self, microbatch: PackedMicrobatch) -> BaseViews:
        """Of all T tokens, on the base's device."""
        known = self._known.get(id(microbatch))
        if known is not None:
            return known[1]
        views = self._backbone.base_views(*_inputs(microbatch, self._backbone))
        if self._keep and self._inside and self._bytes + views.nbytes <= MOST_KEPT_BYTES:
            self._known[id(microbatch)] = (microbatch, views)  # the microbatch too: another one could be given its id otherwise
            self._bytes += views.nbytes
        return views

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around the work on a batch; nothing is kept beyond it."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._known.clear()
            self._bytes = 0


def _inputs(microbatch: PackedMicrobatch, backbone: Backbone) -> tuple[Tensor, Tensor, Tensor]:
    on_device = microbatch.to(backbone.device)
    return on_device.input_ids, on_device.position_ids, on_device.segment_ids
