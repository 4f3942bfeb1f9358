"""The critic's calibration: the best affine map, by hand and by identity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.algorithm.calibration import RIDGE, calibrate


def past(returns: list[float], values: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(returns), torch.tensor(values)


def test_by_hand() -> None:
    """Two one-token trajectories, the older one weighing half: weights 1/3, 2/3. Returns (-1, 1), values (0, 0.6).

    Means: G 1/3, V 0.4. Cov = 1/3·(-4/3)(-0.4) + 2/3·(2/3)(0.2) = 8/30; Var V = 1/3·0.16 + 2/3·0.04 = 0.08.  β = (8/30)/0.09 → clamped to 1.
    """
    found = calibrate([past([-1.0], [0.0]), past([1.0], [0.6])], half_life=1.0)
    assert found is not None
    assert found.return_mean == pytest.approx(1 / 3)
    assert found.value_mean == pytest.approx(0.4)
    assert found.slope == 1.0
    halved = calibrate([past([-0.1], [0.0]), past([0.1], [0.6])], half_life=1.0)
    assert halved is not None
    assert halved.slope == pytest.approx((0.8 / 30) / (0.08 + RIDGE))
    assert halved(torch.tensor([0.4, 1.4])).tolist() == pytest.approx([1 / 30, 1 / 30 + halved.slope])


def test_a_long_answer_weighs_as_much_as_a_short_one() -> None:
    found = calibrate([past([1.0], [0.0]), past([0.0] * 9, [0.0] * 9)], half_life=1e9)
    assert found is not None
    assert found.return_mean == pytest.approx(0.5)


def test_a_critic_that_explains_nothing_is_a_running_mean() -> None:
    found = calibrate([past([1.0], [-1.0]), past([-1.0], [1.0]), past([0.5], [0.5])], half_life=64)
    assert found is not None
    assert found.slope == 0.0
    assert found(torch.tensor([-3.0, 3.0])).tolist() == pytest.approx([found.return_mean] * 2)


def test_values_that_hardly_differ_are_not_blown_up() -> None:
    found = calibrate([past([-1.0], [0.0]), past([1.0], [1e-3])], half_life=64)
    assert found is not None
    assert found.slope < 0.1


def test_nothing_known() -> None:
    assert calibrate([], 64) is None
    assert calibrate([past([math.nan], [0.0])], 64) is None
    with pytest.raises(ValueError, match="half_life"):
        calibrate([], 0)


def test_what_is_not_finite_is_left_out() -> None:
    clean = [past([1.0, 1.0], [0.5, 0.7]), past([0.0], [0.1])]
    dirty = [past([1.0, math.nan, 1.0], [0.5, 0.6, 0.7]), past([0.0, 0.0], [0.1, math.inf])]
    assert calibrate(clean, 8) == calibrate(dirty, 8)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=12), st.floats(0.5, 100))
@settings(max_examples=60, deadline=None, database=None)
def test_never_worse_than_the_constant_nor_than_the_raw_critic(pairs: list[tuple[float, float]], half_life: float) -> None:
    """On its own history, the weighted squared error is at most that of a constant baseline, and (but for the ridge) of the values as they are."""
    found = calibrate([past([g], [v]) for g, v in pairs], half_life)
    assert found is not None
    weights = [0.5 ** (age / half_life) for age in range(len(pairs))][::-1]

    def error(baseline: list[float]) -> float:
        return sum(w * (g - b) ** 2 for w, (g, _), b in zip(weights, pairs, baseline, strict=True)) / sum(weights)

    mine = error(found(torch.tensor([v for _, v in pairs], dtype=torch.float64)).tolist())
    assert mine <= error([found.return_mean] * len(pairs)) + 1e-9
    assert mine <= error([v for _, v in pairs]) + RIDGE + 1e-9
