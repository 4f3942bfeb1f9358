"""Drawing tokens by inverting their distribution function, by hand-computed numbers."""

from __future__ import annotations

import math

import pytest
import torch

from online_sao.inference.continuous_batching import invert


@pytest.mark.parametrize(("draw", "token"), [(0.0, 0), (0.24, 0), (0.25, 1), (0.49, 1), (0.5, 2), (0.99, 2)])
def test_a_draw_is_the_token_whose_share_it_falls_into(draw, token):
    assert invert(torch.tensor([[0.25, 0.25, 0.5]]), torch.tensor([draw])).tolist() == [token]


@pytest.mark.parametrize("draw", [0.0, 0.5, 1 - 2.0**-53])
def test_tokens_of_probability_zero_are_never_drawn(draw):
    # 0.3 + 0.7 in float32 is not quite 1: rows need not be.
    rows = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0], [0.0, 0.0, 0.0, 0.0, 3.0]])
    first, second = invert(rows, torch.tensor([draw, draw], dtype=torch.float64)).tolist()
    assert first == (1 if draw == 0 else 3)
    assert second == 4


def test_draws_spread_as_the_probabilities_say():
    """Within four standard errors of each share."""
    probabilities = torch.tensor([0.1, 0.6, 0.0, 0.3])
    count = 40_000
    generator = torch.Generator().manual_seed(0)
    tokens = invert(probabilities.expand(count, -1), torch.rand(count, dtype=torch.float64, generator=generator))
    for token, share in enumerate(probabilities.tolist()):
        assert abs(float((tokens == token).double().mean()) - share) <= 4 * math.sqrt(share * (1 - share) / count)
