"""What a linear value model sees of an action token: the frozen base's states, pooled over the answer so far. Knows nothing of values or targets.

A state of the last position tells which token comes next; what an answer has been like so far (how long its words are, whom it speaks of) is not to
be read there by a linear map. The mean of the states of its tokens says it: on the bundled model that explains twice as much of what people score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from online_sao.models.backbone import BaseViews

MOST_FEATURES = 3 * 1024
"""Of wider models random projections are seen: the fit takes time and memory with the square of it, and more."""


class Pooled:
    """Features of action tokens: the final state that is about to produce one, and the means, over the answer's tokens so far, of their embeddings
    and of their states two thirds of the way up."""

    def __init__(self, hidden_size: int) -> None:
        self._width = min(hidden_size, MOST_FEATURES // 3)
        self.size = 3 * self._width
        self._projections: tuple[Tensor, ...] = ()
        if hidden_size > self._width:
            generator = torch.Generator().manual_seed(0)
            self._projections = tuple(torch.randn(hidden_size, self._width, generator=generator) / self._width**0.5 for _ in range(3))

    def of(self, views: BaseViews, own: Tensor) -> Tensor:
        """[c, size] float32 in main memory, of c tokens of one trajectory; ``views``: of the tokens before each of them, whose states produce them,
        in order. ``own`` [c] bool: which of those before are the answer's, and not the prompt's or an observation's."""
        own = own.to(views.final.device)
        parts = [views.final.float(), _mean_so_far(views.embedded, own), _mean_so_far(views.middle, own)]
        if self._projections:
            parts = [part @ projection.to(part.device) for part, projection in zip(parts, self._projections, strict=True)]
        return torch.cat(parts, dim=1).cpu()


def _mean_so_far(states: Tensor, own: Tensor) -> Tensor:
    """Row t: the mean of those of rows 0 to t that are ``own``; 0 where none is."""
    total = torch.where(own.unsqueeze(1), states.float(), 0.0).cumsum(0)
    return total / own.cumsum(0).clamp(min=1).unsqueeze(1)
