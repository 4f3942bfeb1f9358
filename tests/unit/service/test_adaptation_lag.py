"""Shifts in streams built by hand: when they began, how deep they were, and when they were over."""

import random

import pytest

from online_sao.service.adaptation_lag import FEWEST, find_shifts
from online_sao.service.score_statistics import delay_of, mean_interval


def stream(*pieces: tuple[float, int], seconds: float = 10.0):
    """(value, how often), a score every ``seconds``."""
    values = [value for value, count in pieces for _ in range(count)]
    return [(seconds * index, value) for index, value in enumerate(values)]


def test_a_fall_is_placed_measured_and_followed_to_its_recovery() -> None:
    (shift,) = find_shifts(stream((1.0, 60), (0.0, 40), (1.0, 60)), 0.0, 1.0)
    assert (shift.began, shift.began_at) == (60, 600.0)
    assert 60 < shift.found < 75
    assert (shift.level, shift.lowest, shift.depth) == (1.0, pytest.approx(0.0), pytest.approx(1.0))
    # From score 100 on they are 1 again: the average over 20 reaches 0.8 with the 16th of them.
    assert (shift.recovered, shift.scores_to_recovery, shift.seconds_to_recovery) == (115, 55, 550.0)
    assert shift.clear
    assert not shift.overtaken


def test_recovery_means_80_percent_of_the_level_before_not_of_the_range() -> None:
    (shift,) = find_shifts(stream((0.5, 60), (0.0, 40), (0.5, 60)), 0.0, 1.0)
    assert shift.level == 0.5
    assert shift.recovered == 115


def test_a_fall_that_lasts_is_not_recovered() -> None:
    (shift,) = find_shifts(stream((1.0, 60), (0.0, 60)), 0.0, 1.0)
    assert (shift.recovered, shift.seconds_to_recovery, shift.overtaken) == (None, None, False)


@pytest.mark.parametrize("low", [0.0, 0.15, 0.3])
def test_a_lucky_score_after_the_fall_is_no_recovery(low) -> None:
    """Yes-or-no scores whose mean falls and stays down: an average that touches the bound while it still counts the good past says nothing."""
    found = 0
    for seed in range(60):
        chance = random.Random(seed)
        values = [float(chance.random() < (0.65 if index < 160 else low)) for index in range(300)]
        for shift in find_shifts([(float(index), value) for index, value in enumerate(values)], 0.0, 1.0):
            if shift.clear and shift.began >= 150:
                found += 1
                assert shift.scores_to_recovery is None or shift.scores_to_recovery >= 19 or shift.scores_to_recovery == 0, seed
    assert found > 20


def test_a_second_fall_before_the_recovery_overtakes_the_first() -> None:
    first, second = find_shifts(stream((1.0, 60), (0.5, 60), (0.0, 60)), 0.0, 1.0)
    assert (first.began, first.recovered, first.overtaken) == (60, None, True)
    assert (second.began, second.level, second.recovered, second.overtaken) == (120, 0.5, None, False)


def test_scores_are_mapped_from_their_range_and_depth_is_in_their_unit() -> None:
    (shift,) = find_shifts(stream((5.0, 60), (1.0, 40), (5.0, 60)), 1.0, 5.0)
    assert (shift.level, shift.lowest, shift.depth) == (5.0, pytest.approx(1.0), pytest.approx(4.0))
    # 80 % of the level above the lowest score: 1 + 0.8 · 4
    assert shift.recovered == 115


@pytest.mark.parametrize("values", [stream((1.0, 200)), stream((0.0, 100), (1.0, 100)), stream((1.0, FEWEST - 1)), []])
def test_no_fall_no_shift(values) -> None:
    assert find_shifts(values, 0.0, 1.0) == ()


def test_chance_alone_is_told_apart() -> None:
    # 1 and 0 in turn with a run of six zeros: a fall to the detector, and well within the noise of twenty coins.
    values = [float(index % 2) for index in range(80)] + [0.0] * 7 + [float(index % 2) for index in range(80)]
    shifts = find_shifts([(float(index), value) for index, value in enumerate(values)], 0.0, 1.0)
    assert not any(shift.clear for shift in shifts)


def test_interval_by_hand() -> None:
    # Student's t, 9 degrees of freedom, 97.5 %: 2.2622
    assert mean_interval(0.5, 0.25, 10) == (pytest.approx(0.5 - 2.2622 * 0.025**0.5, abs=1e-4), pytest.approx(0.5 + 2.2622 * 0.025**0.5, abs=1e-4))


def test_delay_counts_only_answers_that_had_ended() -> None:
    delay = delay_of([None, 1.0, 3.0, 2.0, None])
    assert (delay.scores, delay.median, delay.ninth_decile) == (3, 2.0, pytest.approx(2.8))
    assert delay_of([None]) is None
