"""Scores to rewards."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.errors import InvalidScoreError
from online_sao.experience.rewards import combine, score_to_reward
from online_sao.types import Feedback


@pytest.mark.parametrize(
    ("value", "low", "high", "reward"),
    [
        (0.0, 0.0, 1.0, -1.0),
        (1.0, 0.0, 1.0, 1.0),
        (0.5, 0.0, 1.0, 0.0),
        (0.7, 0.0, 1.0, 0.4),
        (1, 1, 5, -1.0),
        (5, 1, 5, 1.0),
        (2, 1, 5, -0.5),
        (-3.0, -3.0, 7.0, -1.0),
    ],
)
def test_the_map_takes_the_range_to_minus_one_and_one(value: float, low: float, high: float, reward: float) -> None:
    assert score_to_reward(value, low, high) == pytest.approx(reward, abs=1e-12)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 5.0), (-10.0, -2.0)])
def test_booleans_are_the_ends_of_any_range(low: float, high: float) -> None:
    assert score_to_reward(True, low, high) == 1.0
    assert score_to_reward(False, low, high) == -1.0


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf, -math.inf])
def test_scores_outside_the_range_are_refused_and_told_what_was_expected(value: float) -> None:
    with pytest.raises(InvalidScoreError, match=r"0\.0 to 1\.0") as caught:
        score_to_reward(value, 0.0, 1.0)
    assert caught.value.param == "value"


def test_an_empty_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="score_min"):
        score_to_reward(1.0, 1.0, 1.0)


@given(st.floats(-100, 100), st.floats(0.01, 100), st.floats(0, 1))
@settings(max_examples=30, deadline=None, database=None)
def test_rewards_stay_within_minus_one_and_one(low: float, width: float, share: float) -> None:
    high = low + width
    value = min(high, max(low, low + share * width))
    assert -1.0 <= score_to_reward(value, low, high) <= 1.0


def test_combine_is_the_weighted_sum_of_mapped_scores() -> None:
    """score 5 of 1–5 → 1.0 (weight 1); tone 2 → −0.5 (weight 0.4): 1 − 0.2 = 0.8."""
    feedback = [Feedback("score", 5.0), Feedback("tone", 2.0)]
    assert combine(feedback, {"score": 1.0, "tone": 0.4}, 1.0, 5.0) == pytest.approx(0.8, abs=1e-12)


def test_metrics_without_weight_do_not_count() -> None:
    feedback = [Feedback("score", 0.75), Feedback("latency", 0.0)]
    assert combine(feedback, {"score": 1.0}, 0.0, 1.0) == pytest.approx(0.5, abs=1e-12)


def test_no_weighted_score_is_no_reward_and_a_zero_reward_is_one() -> None:
    assert combine([], {"score": 1.0}, 0.0, 1.0) is None
    assert combine([Feedback("latency", 1.0)], {"score": 1.0}, 0.0, 1.0) is None
    assert combine([Feedback("score", 1.0)], {"score": 0.0}, 0.0, 1.0) is None
    assert combine([Feedback("score", 0.5)], {"score": 1.0}, 0.0, 1.0) == 0.0


def test_two_scores_of_one_metric_are_an_error() -> None:
    with pytest.raises(ValueError, match="'score' occurs twice"):
        combine([Feedback("score", 1.0), Feedback("score", 0.0)], {"score": 1.0}, 0.0, 1.0)
