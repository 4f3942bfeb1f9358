"""DIS and the effective sample size, against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.algorithm.importance import dis, effective_sample_fraction

F64 = torch.float64
NAN, INF = math.nan, math.inf


def logs(*ratios: float, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.tensor([math.log(r) for r in ratios], dtype=dtype)


def zeros(n: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.zeros(n, dtype=dtype)


def test_weights_are_the_ratios_current_over_behavior() -> None:
    current = torch.tensor([math.log(0.6), math.log(0.2), math.log(0.5)], dtype=F64)
    behavior = torch.tensor([math.log(0.3), math.log(0.25), math.log(0.5)], dtype=F64)
    result = dis(current, behavior, 0.3, 5.0)
    assert result.weights.tolist() == pytest.approx([2.0, 0.8, 1.0], abs=1e-12)
    assert result.kept.tolist() == [True, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("epsilon_low", "epsilon_high"), [(0.3, 5.0), (0.8, 3.0), (0.5, 1.0)])
def test_both_edges_are_excluded_and_their_neighbours_are_not(dtype: torch.dtype, epsilon_low: float, epsilon_high: float) -> None:
    edge_low, edge_high = torch.tensor([math.log1p(-epsilon_low), math.log1p(epsilon_high)], dtype=dtype)
    inward = torch.tensor(0.0, dtype=dtype)
    log_ratio = torch.stack([edge_low, torch.nextafter(edge_low, inward), torch.nextafter(edge_high, inward), edge_high])
    result = dis(log_ratio, zeros(4, dtype), epsilon_low, epsilon_high)
    assert result.kept.tolist() == [False, True, True, False]
    assert result.masked_low.tolist() == [True, False, False, False]
    assert result.masked_high.tolist() == [False, False, False, True]
    assert result.weights.tolist() == pytest.approx([0.0, 1 - epsilon_low, 1 + epsilon_high, 0.0], abs=1e-5)
    assert result.weights[0] == 0.0
    assert result.weights[3] == 0.0


def test_the_band_is_not_symmetric() -> None:
    result = dis(logs(0.1, 0.69, 0.71, 5.9, 6.1, 100.0), zeros(6), 0.3, 5.0)
    assert result.kept.tolist() == [False, False, True, True, False, False]
    assert result.masked_low.tolist() == [True, True, False, False, False, False]
    assert result.masked_high.tolist() == [False, False, False, False, True, True]
    assert result.weights.tolist() == pytest.approx([0.0, 0.0, 0.71, 5.9, 0.0, 0.0], abs=1e-12)


def test_lower_side_is_open_when_epsilon_low_reaches_one() -> None:
    result = dis(logs(1e-9, 1.0), zeros(2), 1.0, 5.0)
    assert result.kept.tolist() == [True, True]


def test_half_precision_is_compared_in_float32() -> None:
    """log r = 0.015625 is inside the bound 0.01567; in bfloat16 the bound rounds to 0.015625 too, and the token would be masked."""
    current, behavior = torch.tensor([[-2.0], [-2.015625]], dtype=torch.bfloat16)
    result = dis(current, behavior, 0.3, math.expm1(0.01567))
    assert result.weights.dtype == torch.float32
    assert result.kept.tolist() == [True]


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_non_finite_logprobs_are_masked_and_counted_on_either_side(broken: float) -> None:
    current = torch.tensor([-1.0, broken, -1.0, broken], dtype=F64)
    behavior = torch.tensor([-1.0, -1.0, broken, broken], dtype=F64)
    result = dis(current, behavior, 0.3, 5.0)
    assert result.weights.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert result.non_finite.tolist() == [False, True, True, True]
    assert not (result.masked_low | result.masked_high)[1:].any()


def test_ratios_that_would_overflow_are_masked_not_infinite() -> None:
    result = dis(torch.tensor([0.0, -1e30], dtype=torch.float32), torch.tensor([-1e30, 0.0], dtype=torch.float32), 0.3, 5.0)
    assert result.weights.tolist() == [0.0, 0.0]
    assert result.masked_high.tolist() == [True, False]
    assert result.masked_low.tolist() == [False, True]


def test_weights_carry_no_gradient() -> None:
    current = torch.tensor([-1.0, -2.0], dtype=F64, requires_grad=True)
    assert not dis(current, torch.tensor([-1.1, -2.0], dtype=F64), 0.3, 5.0).weights.requires_grad


def test_on_policy_data_is_all_kept_with_weight_one() -> None:
    logprobs = -torch.rand(100) * 20
    result = dis(logprobs, logprobs.clone(), 0.3, 5.0)
    assert result.kept.all()
    assert torch.equal(result.weights, torch.ones(100))


@given(st.lists(st.one_of(st.floats(-50, 50), st.sampled_from([NAN, INF, -INF])), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None, database=None)
def test_every_token_is_in_exactly_one_class(log_ratios: list[float]) -> None:
    result = dis(torch.tensor(log_ratios, dtype=F64), zeros(len(log_ratios)), 0.3, 5.0)
    classes = torch.stack([result.kept, result.masked_low, result.masked_high, result.non_finite]).sum(dim=0)
    assert classes.tolist() == [1] * len(log_ratios)
    assert torch.isfinite(result.weights).all()
    assert torch.equal(result.weights > 0, result.kept)


def test_ess_by_hand() -> None:
    """Ratios 1, 2, 3: (1 + 2 + 3)² / (3 · (1 + 4 + 9)) = 36 / 42."""
    log_ratio = logs(1.0, 2.0, 3.0)
    assert float(effective_sample_fraction(log_ratio, torch.ones(3, dtype=torch.bool))) == pytest.approx(36 / 42, abs=1e-12)


def test_ess_is_one_on_equal_ratios_and_one_over_n_when_one_token_dominates() -> None:
    everything = torch.ones(4, dtype=torch.bool)
    assert float(effective_sample_fraction(logs(2.0, 2.0, 2.0, 2.0), everything)) == pytest.approx(1.0, abs=1e-12)
    assert float(effective_sample_fraction(torch.tensor([500.0, 0.0, 0.0, 0.0]), everything)) == pytest.approx(0.25, abs=1e-6)


def test_ess_leaves_out_invalid_and_non_finite_tokens_also_from_n() -> None:
    log_ratio = torch.tensor([0.0, math.log(2.0), NAN, INF, 3.0], dtype=F64)
    valid = torch.tensor([True, True, True, True, False])
    assert float(effective_sample_fraction(log_ratio, valid)) == pytest.approx(9 / 10, abs=1e-12)


def test_ess_of_one_token_is_one_and_of_none_is_zero() -> None:
    assert float(effective_sample_fraction(torch.tensor([7.0]), torch.tensor([True]))) == 1.0
    assert float(effective_sample_fraction(torch.tensor([7.0]), torch.tensor([False]))) == 0.0
    assert float(effective_sample_fraction(torch.zeros(0), torch.zeros(0, dtype=torch.bool))) == 0.0


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=20), st.floats(-200, 200))
@settings(max_examples=30, deadline=None, database=None)
def test_ess_does_not_change_when_all_ratios_are_scaled(log_ratios: list[float], shift: float) -> None:
    log_ratio = torch.tensor(log_ratios, dtype=F64)
    everything = torch.ones(len(log_ratios), dtype=torch.bool)
    fraction = float(effective_sample_fraction(log_ratio, everything))
    assert 1 / len(log_ratios) - 1e-9 <= fraction <= 1 + 1e-9
    assert float(effective_sample_fraction(log_ratio + shift, everything)) == pytest.approx(fraction, abs=1e-9)
