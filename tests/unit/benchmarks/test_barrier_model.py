"""What waiting costs: small schedules worked out by hand, identities, and expectations of maxima against plain sampling."""

import itertools
import math

import numpy as np
import pytest

from online_sao.benchmarks.barrier_model import Buffer, Constant, Plan, Schedule, figures, lognormal, over_seeds, simulate

SYNCHRONOUS, GROUPS, SINGLE = Schedule


def same(length):
    return itertools.repeat(length)


def drawn(seed, variation=1.0):
    return lognormal(np.random.default_rng(seed), 1.0, variation)


def times(trace):
    return [(rollout.started, rollout.ended, rollout.version) for rollout in trace.rollouts]


def updates(trace):
    return [(update.started, update.ended, sorted(rollout.length for rollout in update.rollouts)) for update in trace.updates]


# Three workers, an update on three rollouts takes 1. Lengths: 1, 2, 6, 3, 1, 2, 4, ...
LENGTHS = (1.0, 2.0, 6.0, 3.0, 1.0, 2.0, 4.0, 5.0, 1.0, 1.0, 1.0, 1.0)


def three(schedule, count, **numbers):
    return simulate(Plan(schedule, workers=3, batch=3, updates=count, group=3, **numbers), iter(LENGTHS), Constant(1.0, 1.0))


def test_synchronous_by_hand():
    trace = three(SYNCHRONOUS, 2)
    assert times(trace) == [(0, 1, 0), (0, 2, 0), (0, 6, 0), (7, 10, 1), (7, 8, 1), (7, 9, 1)]
    assert updates(trace) == [(6, 7, [1, 2, 6]), (10, 11, [1, 2, 3])]
    found = figures(trace, warmup=1)
    assert found["worker_utilisation"] == pytest.approx((3 + 1 + 2) / (3 * 4))
    assert found["learner_utilisation"] == pytest.approx(1 / 4)
    assert found["updates_per_hour"] == pytest.approx(3600 / 4)
    assert found["wait_mean"] == pytest.approx((0 + 2 + 1) / 3)
    assert found["lag_mean"] == 0


def test_single_rollouts_by_hand():
    # Worker A: 1 until 1, 3 until 4; B: 2 until 2, 1 until 3, 2 until 5; C: 6 until 6. First batch: those that end at 1, 2 and 3.
    trace = three(SINGLE, 2)
    assert times(trace)[:6] == [(0, 1, 0), (0, 2, 0), (0, 6, 0), (1, 4, 0), (2, 3, 0), (3, 5, 0)]
    assert updates(trace) == [(3, 4, [1, 1, 2]), (6, 7, [2, 3, 6])]
    found = figures(trace, warmup=1)
    assert found["lag_mean"] == 1
    assert found["wait_mean"] == pytest.approx((2 + 1 + 0) / 3)
    assert found["worker_utilisation"] == 1
    assert found["learner_utilisation"] == pytest.approx(1 / 3)


def test_groups_by_hand():
    # Of the same rollouts, the second group (3, 1, 2) has ended at 5, the first (1, 2, 6) only at 6.
    trace = three(GROUPS, 2)
    assert times(trace)[:6] == [(0, 1, 0), (0, 2, 0), (0, 6, 0), (1, 4, 0), (2, 3, 0), (3, 5, 0)]
    assert updates(trace) == [(5, 6, [1, 2, 3]), (6, 7, [1, 2, 6])]
    found = figures(trace, warmup=0)
    assert found["lag_mean"] == pytest.approx((0 * 3 + 1 * 3) / 6)
    assert found["wait_mean"] == pytest.approx((1 + 2 + 0 + 5 + 4 + 0) / 6)


def test_nobody_begins_more_than_may_be_ahead():
    trace = three(SINGLE, 3, ahead=3)
    assert [rollout.started for rollout in trace.rollouts[:7]] == [0, 0, 0, 6, 6, 6, 9]
    for rollout in trace.rollouts[:9]:
        begun = sum(other.started <= rollout.started for other in trace.rollouts)
        used = sum(len(update.rollouts) for update in trace.updates if update.started <= rollout.started)
        assert begun - used <= 3


class Shared:
    """Two rollouts take twice as long each, an update beside them half as long again; an update with nobody sampling takes 1, else 2."""

    def generation(self, running, updating):
        return running * (1.5 if updating else 1.0)

    def update(self, length, generating):
        return length / 4 * (2.0 if generating else 1.0)


def test_who_shares_a_machine_goes_at_one_pace_that_changes():
    # Two run at 2 a unit: the first (1) ends at 2, then its successor (2) beside what is left of the second (3): 2 units, at 2 each, until 6.
    trace = simulate(Plan(SYNCHRONOUS, workers=2, batch=4, updates=1, group=1), iter((1.0, 3.0, 2.0, 2.0)), Shared())
    assert [rollout.ended for rollout in trace.rollouts] == [2, 6, 6, 8], "the last runs alone: 2 units at 1 each"
    assert (trace.updates[0].started, trace.updates[0].ended) == (8, 10), "8 units of length: 2 s with nobody beside it"
    # One worker, batches of one: the update on the first (4 units, 2 s beside a rollout) slows the second (1.5 a unit) for 2 of its seconds.
    trace = simulate(Plan(SINGLE, workers=1, batch=1, updates=2, group=1), iter((4.0, 4.0, 4.0)), Shared())
    assert (trace.updates[0].started, trace.updates[0].ended) == (4, 6)
    assert trace.rollouts[1].ended == pytest.approx(4 + 2 + (4 - 2 / 1.5))
    # The second ends amid that update, three quarters through, and no third may begin: the last quarter goes at the pace of an update alone.
    trace = simulate(Plan(SINGLE, workers=1, batch=1, updates=1, group=1, ahead=1), iter((4.0, 1.0)), Shared())
    assert trace.rollouts[1].ended == pytest.approx(4 + 1.5)
    assert trace.updates[0].ended == pytest.approx(4 + 1.5 + 0.25)


@pytest.mark.parametrize("update", [0.0, 0.25, 3.0])
def test_where_all_are_equally_long_synchronous_batches_wait_for_the_update_alone(update):
    trace = simulate(Plan(SYNCHRONOUS, workers=16, batch=16, updates=12), same(2.0), Constant(1.0, update))
    assert figures(trace, 2)["worker_utilisation"] == pytest.approx(1 / (1 + update / 2.0), rel=1e-12)


@pytest.mark.parametrize("schedule", [GROUPS, SINGLE])
def test_without_a_bound_workers_never_wait(schedule):
    trace = simulate(Plan(schedule, workers=24, batch=8, updates=200), drawn(1, 2.0), Constant(1.0, 0.2))
    assert figures(trace, 20)["worker_utilisation"] == pytest.approx(1, abs=1e-9)


def test_every_rollout_is_used_once_and_only_after_it_has_ended():
    for schedule in Schedule:
        trace = simulate(Plan(schedule, workers=16, batch=16, updates=50), drawn(2, 2.0), Constant(1.0, 0.5))
        used = [id(rollout) for update in trace.updates for rollout in update.rollouts]
        assert len(used) == len(set(used)) == 50 * 16
        assert all(rollout.ended <= update.started for update in trace.updates for rollout in update.rollouts)
        assert all(rollout.ended - rollout.started == pytest.approx(rollout.length) for update in trace.updates for rollout in update.rollouts)


def test_lengths_have_the_mean_and_the_variation_asked_for():
    for variation in (1.0, 2.0):
        lengths = np.fromiter(itertools.islice(lognormal(np.random.default_rng(3), 5.0, variation), 400_000), float)
        assert lengths.mean() == pytest.approx(5.0, rel=0.02)
        assert np.median(lengths) == pytest.approx(5.0 / math.sqrt(1 + variation**2), rel=0.01)
    assert list(itertools.islice(lognormal(np.random.default_rng(3), 5.0, 0.0), 10)) == pytest.approx([5.0] * 10)


def maxima(count, samples, seed=11):
    variance = math.log(2)  # variation 1
    found = np.random.default_rng(seed).lognormal(-variance / 2, math.sqrt(variance), (samples, count)).max(axis=1)
    return found.mean(), found.std(ddof=1) / math.sqrt(samples)


@pytest.mark.parametrize("workers", [8, 64])
def test_a_synchronous_batch_takes_as_long_as_its_longest(workers):
    expected, error = maxima(workers, 20_000)
    trace = simulate(Plan(SYNCHRONOUS, workers, workers, updates=2000), drawn(5), Constant(1.0, 0.0))
    found = figures(trace, 0)
    assert 3600 / found["updates_per_hour"] == pytest.approx(expected, abs=4 * error * math.sqrt(1 + 10))
    assert found["worker_utilisation"] == pytest.approx(1 / expected, rel=0.05)


def test_a_member_of_a_group_waits_for_the_longest_of_eight():
    # So many workers that a group begins nearly together, and the learner takes each group at once.
    expected, error = maxima(8, 20_000)
    trace = simulate(Plan(GROUPS, workers=4000, batch=8, updates=4000), drawn(6), Constant(1.0, 0.0))
    assert figures(trace, 2000)["wait_mean"] == pytest.approx(expected - 1, abs=4 * error * math.sqrt(1 + 10) + 0.02)
    alone = simulate(Plan(SINGLE, workers=4000, batch=8, updates=4000), drawn(6), Constant(1.0, 0.0))
    assert figures(alone, 2000)["wait_mean"] < 0.01


def test_a_buffer_gives_whole_groups_in_the_order_they_were_complete():
    buffer = Buffer(GROUPS, batch=4, group=2)
    for number in (0, 2, 3, 4, 5):
        buffer.add(number, number)
    assert buffer.take() == [2, 3, 4, 5]
    buffer.add(1, 1)
    assert buffer.take() is None
    with pytest.raises(ValueError, match="whole groups"):
        Buffer(GROUPS, batch=12, group=8)


@pytest.mark.parametrize("ahead", [8, 20])
def test_a_bound_below_a_batch_or_within_a_group_is_refused(ahead):
    with pytest.raises(ValueError, match="ahead"):
        Plan(SINGLE, workers=8, batch=16, updates=1, ahead=ahead)


def test_intervals_over_seeds():
    found = over_seeds(lambda seed: {"x": float(seed)}, [1, 2, 3])["x"]
    assert found["mean"] == 2
    assert found["high"] - 2 == 2 - found["low"] == pytest.approx(4.302653 * 1 / math.sqrt(3), rel=1e-6)
    assert over_seeds(lambda seed: {"x": 1.0}, [1]) == {"x": {"mean": 1.0}}
