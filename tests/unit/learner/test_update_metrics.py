"""What an update says of its policy step, by hand-computed numbers."""

import pytest
import torch

from online_sao.algorithm.importance import TokenWeights
from online_sao.learner.report import PolicyPass, policy_metrics


def weights(kept: list[int], low: list[int], high: list[int]) -> TokenWeights:
    one, two, three = (torch.tensor(side, dtype=torch.bool) for side in (kept, low, high))
    return TokenWeights(weights=one.float(), kept=one, masked_low=two, masked_high=three, non_finite=torch.zeros_like(one))


def metrics(pieces: list[TokenWeights], advantages: list[list[float]]) -> dict[str, float]:
    tokens = [torch.zeros(len(piece.kept)) for piece in pieces]
    return policy_metrics(PolicyPass(log_ratio=tokens, weights=pieces, entropy=tokens), [torch.tensor(values) for values in advantages])


def test_good_tokens_lost_are_counted_among_the_good_ones() -> None:
    """Six tokens in two microbatches. Good: 0, 2, 4, 5; too unlikely: 1, 2, 5; too likely: 4."""
    pieces = [weights([1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]), weights([0, 0], [0, 1], [1, 0])]
    found = metrics(pieces, [[1.0, -1.0, 0.5, -0.5], [2.0, 0.1]])
    assert found["policy/masked_fraction"] == pytest.approx(4 / 6)
    assert found["policy/masked_fraction_low"] == pytest.approx(3 / 6)
    assert found["policy/masked_fraction_good"] == pytest.approx(2 / 4)


def test_where_nothing_is_good_no_good_token_is_lost() -> None:
    assert metrics([weights([0, 1], [1, 0], [0, 0])], [[-1.0, 0.0]])["policy/masked_fraction_good"] == 0.0
