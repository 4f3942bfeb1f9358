"""What a run measures, and how users are held back; the service is a scripted stand-in that speaks the client's interface."""

import asyncio

import pytest

from online_sao.errors import ConfigurationError
from online_sao.simulation import users as users_module
from online_sao.simulation.client import CallFailedError, policy_version_of
from online_sao.simulation.measuring import Sample, distinct_2, require_one_version, window_means
from online_sao.simulation.plan import Plan
from online_sao.simulation.users import BackPressure, Habits


def test_windows_leave_failed_interactions_out_and_keep_the_last_partial_one():
    assert window_means([1.0, 0.0, None, 0.5, 1.0], 2, first=10) == [
        {"first": 10, "last": 11, "mean": 0.5},
        {"first": 12, "last": 13, "mean": 0.5},
        {"first": 14, "last": 14, "mean": 1.0},
    ]
    assert window_means([None], 2) == [{"first": 0, "last": 0, "mean": None}]


def test_distinct_2_by_hand():
    assert distinct_2(["The cat sat", "the cat ran"]) == 3 / 4  # the cat, cat sat, cat ran of four pairs
    assert distinct_2(["one", ""]) is None


def answered(*versions):
    plan = Plan("first-person:4")
    return Sample((plan.ask(0),) * len(versions), ("I do.",) * len(versions), versions)


def test_a_control_answered_by_two_versions_is_refused():
    require_one_version(answered(3, 3), answered(3))
    with pytest.raises(ConfigurationError, match="versions 3 to 4"):
        require_one_version(answered(3, 3), answered(4))


def test_version_is_read_from_the_fingerprint():
    assert policy_version_of("smollm2-135m@v17") == 17
    for foreign in (None, "", "fp_44709d6fcb", "name@v"):
        with pytest.raises(CallFailedError, match="policy version"):
            policy_version_of(foreign)


class Backlog:
    """A service whose learner's queue the test sets."""

    def __init__(self, ready=0, claimed=0, phase="waiting", paused=False, pause_reason=None):
        self.trajectories = {"ready": ready, "claimed": claimed}
        self.learner = {"phase": phase, "paused": paused, "pause_reason": pause_reason}

    async def status(self):
        return {"pipeline": dict(self.trajectories), "learner": self.learner}


async def test_users_wait_while_the_backlog_and_the_answers_under_way_reach_the_limit():
    service = Backlog(ready=8, claimed=6)
    pressure = BackPressure(service, max_backlog=16, poll_seconds=0.01)
    await pressure.enter()
    await pressure.enter()
    third = asyncio.create_task(pressure.enter())
    await asyncio.sleep(0.05)
    assert not third.done(), "14 waiting for the learner and 2 under way are 16"
    service.trajectories["claimed"] = 0
    await asyncio.wait_for(third, 1)
    assert pressure.waited_seconds >= 0.05


async def test_an_answered_score_makes_room():
    pressure = BackPressure(Backlog(), max_backlog=1, poll_seconds=0.01)
    await pressure.enter()
    second = asyncio.create_task(pressure.enter())
    await asyncio.sleep(0.03)
    assert not second.done()
    pressure.leave()
    await asyncio.wait_for(second, 1)


async def test_a_learner_that_stands_still_ends_the_run_and_says_why(monkeypatch):
    monkeypatch.setattr(users_module, "STALL_SECONDS_IDLE", 0.05)
    pressure = BackPressure(Backlog(ready=99, phase="alarm", paused=True, pause_reason="self-check failed"), max_backlog=16, poll_seconds=0.01)
    with pytest.raises(ConfigurationError, match=r"phase alarm: self-check failed.*--max-backlog"):
        await asyncio.wait_for(pressure.enter(), 2)


def test_habits_follow_their_probabilities_and_their_seed_alone():
    habits = Habits(seed=1, noise=0.2, missing=0.1)
    sent = [habits.sent(index, 0.9) for index in range(2000)]
    assert sent == [habits.sent(index, 0.9) for index in range(2000)]
    assert sent != [Habits(seed=2, noise=0.2, missing=0.1).sent(index, 0.9) for index in range(2000)]
    assert sent.count(None) == pytest.approx(200, abs=50)
    assert sum(score is not None and score < 0.5 for score in sent) == pytest.approx(360, abs=60)  # a fifth of those that are sent
    assert {round(score, 9) for score in sent if score is not None} == {0.1, 0.9}
    assert all(Habits().sent(index, 0.3) == 0.3 for index in range(50))


@pytest.mark.parametrize("wrong", [{"noise": -0.1}, {"missing": 2}, {"late": "1.5"}, {"late": "-1"}, {"late": "s"}])
def test_impossible_habits_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        Habits(**wrong)


def test_lateness_in_interactions_or_seconds():
    assert (Habits(late="12").late_interactions, Habits(late="12").late_seconds) == (12, 0.0)
    assert (Habits(late="1.5s").late_interactions, Habits(late="1.5s").late_seconds) == (0, 1.5)
