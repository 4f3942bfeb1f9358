"""Estimators behind the metrics, against numbers worked out by hand."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.algorithm.diagnostics import (
    RATIO_EDGES,
    count_non_finite,
    entropy,
    explained_variance,
    kl_k1,
    kl_k3,
    log_ratio_gap,
    ratio_histogram,
)
from online_sao.algorithm.numerics import tempered_log_softmax

F64 = torch.float64
NAN, INF = math.nan, math.inf


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def test_k1_and_k3_by_hand() -> None:
    """Ratios 2 and 0.5. k1 = −(log 2 + log 0.5)/2 = 0. k3 = ((2 − 1 − log 2) + (0.5 − 1 + log 2))/2 = 0.25."""
    log_ratio = t(math.log(2.0), math.log(0.5))
    assert kl_k1(log_ratio).item() == pytest.approx(0.0, abs=1e-12)
    assert kl_k3(log_ratio).item() == pytest.approx(0.25, abs=1e-12)
    assert kl_k1(t(-0.3, 0.1)).item() == pytest.approx(0.1, abs=1e-12)
    assert kl_k3(t(-0.3)).item() == pytest.approx(math.exp(-0.3) - 1 + 0.3, abs=1e-12)


def test_k1_and_k3_estimate_kl_from_behavior_to_current() -> None:
    """The exact expectation under behavior = (0.5, 0.3, 0.2) with current = (0.2, 0.2, 0.6) is the KL itself."""
    behavior, current = t(0.5, 0.3, 0.2), t(0.2, 0.2, 0.6)
    kl = sum(b * math.log(b / c) for b, c in zip(behavior.tolist(), current.tolist(), strict=True))
    counts = torch.tensor([5, 3, 2])
    log_ratio = torch.log(current / behavior).repeat_interleave(counts)
    assert kl_k1(log_ratio).item() == pytest.approx(kl, abs=1e-12)
    assert kl_k3(log_ratio).item() == pytest.approx(kl, abs=1e-12)


def test_k3_keeps_its_digits_near_ratio_one_in_float32() -> None:
    """x²/2 for small x: in float32, exp(x) − 1 − x would be 0 or noise."""
    assert kl_k3(torch.tensor([1e-4])).item() == pytest.approx(5e-9, rel=1e-2)
    assert kl_k3(torch.tensor([-1e-4])).item() == pytest.approx(5e-9, rel=1e-2)


def test_k3_cuts_ratios_that_would_overflow() -> None:
    assert kl_k3(torch.tensor([1000.0, 0.0])).item() == pytest.approx(math.exp(60) / 2, rel=1e-5)


@given(st.lists(st.floats(-1e6, 1e6), max_size=20))
@settings(max_examples=30, deadline=None, database=None)
def test_k3_is_never_negative_and_always_finite(log_ratios: list[float]) -> None:
    for dtype in (F64, torch.float32):
        value = kl_k3(torch.tensor(log_ratios, dtype=dtype)).item()
        assert math.isfinite(value)
        assert value >= -1e-9


def test_kl_leaves_out_non_finite_and_is_zero_on_nothing() -> None:
    assert kl_k1(t(NAN, 0.5, INF)).item() == -0.5
    assert kl_k3(t(NAN, math.log(2.0), -INF)).item() == pytest.approx(1 - math.log(2.0), abs=1e-12)
    assert kl_k1(t()).item() == kl_k3(t(NAN)).item() == 0.0


def test_entropy_by_hand_and_at_temperature() -> None:
    logits = torch.log(torch.tensor([[0.25] * 4, [0.7, 0.1, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]], dtype=F64))
    at_one = -(0.7 * math.log(0.7) + 0.3 * math.log(0.1))
    tempered = [p**2 / (0.49 + 0.03) for p in (0.7, 0.1, 0.1, 0.1)]
    at_half = -sum(p * math.log(p) for p in tempered)
    assert entropy(tempered_log_softmax(logits, t(1.0, 1.0, 0.5))).tolist() == pytest.approx([math.log(4), at_one, at_half], abs=1e-12)


def test_entropy_of_a_broken_row_is_zero_and_others_are_untouched() -> None:
    logits = torch.zeros(3, 2, dtype=F64)
    logits[1, 0] = NAN
    assert entropy(tempered_log_softmax(logits, t(1.0, 1.0, 0.0))).tolist() == pytest.approx([math.log(2), 0.0, 0.0], abs=1e-12)


def test_explained_variance_by_hand() -> None:
    """returns (1, −1, 1, −1): variance 1. Values (0.5, −0.5, 0.5, −0.5): residual variance 0.25."""
    returns = t(1, -1, 1, -1)
    assert explained_variance(returns, returns / 2).item() == pytest.approx(0.75, abs=1e-12)
    assert explained_variance(returns, returns).item() == pytest.approx(1.0, abs=1e-12)


def test_explained_variance_sign() -> None:
    returns = t(1, -1, 1, -1)
    assert explained_variance(returns, t(0.3, 0.3, 0.3, 0.3)).item() == pytest.approx(0.0, abs=1e-12)
    assert explained_variance(returns, -returns).item() == pytest.approx(-3.0, abs=1e-12)


@pytest.mark.parametrize("returns", [t(0.1, 0.1, 0.1), t(1.0), t()])
def test_explained_variance_where_there_is_nothing_to_explain(returns: torch.Tensor) -> None:
    assert explained_variance(returns, torch.arange(returns.numel(), dtype=F64)).item() == 0.0


def test_explained_variance_leaves_out_non_finite_pairs() -> None:
    assert explained_variance(t(1, NAN, -1, 5), t(0.5, 0, -0.5, INF)).item() == pytest.approx(0.75, abs=1e-12)


def test_log_ratio_gap_by_hand() -> None:
    gap = log_ratio_gap(t(0.1, -0.3, -2.0, 4.0, NAN), torch.tensor([True, True, False, False, False]))
    assert gap.unmasked.item() == pytest.approx(0.2, abs=1e-12)
    assert gap.masked.item() == pytest.approx(3.0, abs=1e-12)
    assert log_ratio_gap(t(0.1), torch.tensor([True])).masked.item() == 0.0


def test_ratio_histogram_counts_every_token_once_and_is_json() -> None:
    ratios = (0.05, 0.2, 1.0, 1.0, 5.0, 50.0)
    histogram = ratio_histogram(torch.cat([torch.log(t(*ratios)), t(INF)]))
    assert histogram["edges"] == list(RATIO_EDGES)
    assert len(histogram["counts"]) == len(RATIO_EDGES) + 1
    filled = {i: count for i, count in enumerate(histogram["counts"]) if count}
    assert filled == {0: 1, 1: 1, RATIO_EDGES.index(1.01): 2, RATIO_EDGES.index(6.0): 1, len(RATIO_EDGES): 1}
    assert histogram["non_finite"] == 1
    assert json.loads(json.dumps(histogram, allow_nan=False)) == histogram
    assert sum(ratio_histogram(t())["counts"]) == 0


def test_count_non_finite_counts_positions_not_numbers() -> None:
    assert count_non_finite(t(1, NAN, 2, INF), t(1, NAN, -INF, 0)) == 3
    assert count_non_finite(t(1, 2)) == 0
