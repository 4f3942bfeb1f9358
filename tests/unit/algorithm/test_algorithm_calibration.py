"""What the past says of a batch: the critic's slope, the level to expect, and whether reward has fallen. By hand and by identity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.algorithm.calibration import RIDGE, calibration_slope, recent_mean, reward_drop


def past(returns: list[float], values: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(returns), torch.tensor(values)


def test_slope_by_hand() -> None:
    """Two one-token trajectories, the older one weighing half: weights 1/3, 2/3. Returns (-0.1, 0.1), values (0, 0.6).

    Means: G 1/30, V 0.4. Cov = 1/3·(-4/30)(-0.4) + 2/3·(2/30)(0.2) = 0.8/30; Var V = 1/3·0.16 + 2/3·0.04 = 0.08.
    """
    assert calibration_slope([past([-0.1], [0.0]), past([0.1], [0.6])], half_life=1.0) == pytest.approx((0.8 / 30) / (0.08 + RIDGE))
    # Ten times the returns would be a slope of 2.96: never above 1.
    assert calibration_slope([past([-1.0], [0.0]), past([1.0], [0.6])], half_life=1.0) == 1.0


def test_a_long_answer_weighs_as_much_as_a_short_one() -> None:
    short = [past([1.0], [1.0]), past([0.0], [0.0]), past([1.0], [0.0])]
    long = [past([1.0], [1.0]), past([0.0], [0.0]), past([1.0] * 9, [0.0] * 9)]
    assert calibration_slope(short, 8) == pytest.approx(calibration_slope(long, 8))


def test_a_critic_that_explains_nothing_has_no_say() -> None:
    assert calibration_slope([past([1.0], [-1.0]), past([-1.0], [1.0]), past([0.5], [0.5])], half_life=64) == 0.0
    assert calibration_slope([past([-1.0], [0.0]), past([1.0], [1e-3])], half_life=64) < 0.1  # values that hardly differ are not blown up


def test_nothing_known() -> None:
    assert calibration_slope([], 64) == 0.0
    assert calibration_slope([past([math.nan], [0.0])], 64) == 0.0
    with pytest.raises(ValueError, match="half_life"):
        calibration_slope([], 0)
    assert recent_mean([], 16) is None
    assert recent_mean([math.nan], 16, [math.inf]) is None
    assert reward_drop([], 16, 64) == 0.0
    assert reward_drop([1.0, math.nan], 16, 64) == 0.0


def test_what_is_not_finite_is_left_out() -> None:
    clean = [past([1.0, 1.0], [0.5, 0.7]), past([0.0], [0.1])]
    dirty = [past([1.0, math.nan, 1.0], [0.5, 0.6, 0.7]), past([0.0, 0.0], [0.1, math.inf])]
    assert calibration_slope(clean, 8) == calibration_slope(dirty, 8)
    assert reward_drop([1.0, math.nan, 0.0, 0.0], 1, 8) == reward_drop([1.0, 0.0, 0.0], 1, 8)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=12), st.floats(0.5, 100))
@settings(max_examples=60, deadline=None, database=None)
def test_never_worse_than_the_constant_nor_than_the_raw_critic(pairs: list[tuple[float, float]], half_life: float) -> None:
    """On its own history, the weighted variance of G − β·V is at most that of G, and (but for the ridge) that of G − V."""
    slope = calibration_slope([(torch.tensor([g]).double(), torch.tensor([v]).double()) for g, v in pairs], half_life)
    weights = [0.5 ** (age / half_life) for age in range(len(pairs))][::-1]

    def variance(numbers: list[float]) -> float:
        mean = sum(w * x for w, x in zip(weights, numbers, strict=True)) / sum(weights)
        return sum(w * (x - mean) ** 2 for w, x in zip(weights, numbers, strict=True)) / sum(weights)

    mine = variance([g - slope * v for g, v in pairs])
    assert mine <= variance([g for g, _ in pairs]) + 1e-9
    assert mine <= variance([g - v for g, v in pairs]) + RIDGE + 1e-9


def test_recent_mean_by_hand() -> None:
    """Half-life 1: the newest weighs 1/2, the one before 1/4; what is of now weighs 1."""
    assert recent_mean([4.0, 2.0], 1.0) == pytest.approx((4 / 4 + 2 / 2) / (1 / 4 + 1 / 2))
    assert recent_mean([4.0, 2.0], 1.0, [1.0, 3.0]) == pytest.approx((1 + 1 + 1 + 3) / 2.75)
    assert recent_mean([], 1.0, [1.0, 3.0]) == 2.0


def test_reward_drop_by_hand() -> None:
    """Half-lives 1 and 1e9 over (9, 0, 0): fast weights 1/4, 1/2, 1 → mean 9/7, variance 81/7 − 81/49, n = (7/4)² / (21/16) = 7/3; slow mean 3."""
    error = math.sqrt((81 / 7 - 81 / 49) / (7 / 3))
    assert error > 3 - 9 / 7
    assert reward_drop([9.0, 0.0, 0.0], 1.0, 1e9) == 0.0  # a drop, but within what three numbers can say
    # (9, 0, 0, 0, 0): fast mean 9/31, variance 81/31 − (9/31)², n = (31/16)² / (341/256); slow mean 9/5.
    error = math.sqrt((81 / 31 - (9 / 31) ** 2) / ((31 / 16) ** 2 / (341 / 256)))
    assert reward_drop([9.0, 0.0, 0.0, 0.0, 0.0], 1.0, 1e9) == pytest.approx(9 / 5 - 9 / 31 - error, abs=1e-6)


def test_a_rise_a_constant_and_noise_are_no_drop() -> None:
    assert reward_drop([-1.0] * 64 + [1.0] * 16, 16, 64) == 0.0
    assert reward_drop([0.3] * 100, 16, 64) == 0.0
    assert reward_drop([1.0, -1.0] * 60, 16, 64) < 0.05


def test_a_drop_fades_as_the_slow_mean_forgets() -> None:
    drops = [reward_drop([1.0] * 128 + [-1.0] * since, 16, 64) for since in (16, 64, 256)]
    assert drops[0] > drops[2]
    assert drops[1] > drops[2]
    assert drops[2] < 0.2
