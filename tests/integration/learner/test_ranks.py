"""A learner of two ranks as real processes: what it learns, and what is left of it when either is killed in the middle of an update."""

import signal
import time

import psutil
import pytest

TWO = {"ONLINE_SAO_LEARNING__RANKS": "2", "ONLINE_SAO_LEARNING__MICROBATCH_TOKENS": "12", "ONLINE_SAO_LEARNING__RANK_TIMEOUT_SECONDS": "120"}


def gone(process: psutil.Process) -> bool:
    """Nobody reaps it here: a zombie has ended too."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def others(home) -> list[psutil.Process]:
    return psutil.Process(home.process.pid).children(recursive=True)


def ended(home, processes: list[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not all(gone(process) for process in processes):
        assert time.monotonic() < deadline, f"a rank lives on: {processes}\n{home.log()[-4000:]}"
        time.sleep(0.1)


def test_two_ranks_learn_and_end_together(home):
    home.insert_scored()
    process = home.fork(**TWO)
    home.wait_for("the first batch is trained", lambda: home.head() == (1, 1))
    ranks = others(home)
    assert len(ranks) >= 1
    home.insert_scored()
    home.wait_for("the second batch is trained", lambda: home.head() == (2, 2))
    home.wait_for("it waits", lambda: home.phase() == "waiting")

    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    ended(home, ranks, 30)
    home.assert_sound(updates=2)

    home.insert_scored()
    home.fork()  # one rank goes on where two left off
    home.wait_for("one rank goes on", lambda: home.head() == (3, 3))
    home.assert_sound(updates=3)


@pytest.mark.parametrize("point", ["inside the update", "rank 1 dies inside the update", "rank 1 hangs inside the update"])
def test_a_rank_is_lost_in_the_middle_of_an_update(home, point):
    home.insert_scored()
    patience = "120" if "hangs" not in point else "20"
    process = home.fork(point, **{**TWO, "ONLINE_SAO_LEARNING__RANK_TIMEOUT_SECONDS": patience})
    home.wait_for("the update has begun", lambda: process.poll() is not None or home.phase() == "updating")
    ranks = others(home) if process.poll() is None else []
    code = process.wait(timeout=120)
    assert code == (-signal.SIGKILL if point == "inside the update" else 1), home.log()
    ended(home, ranks, 30)
    assert (home.count("claimed"), home.checkpoints()) == (4, []), "the batch is neither lost nor blamed"

    home.fork(**TWO)
    home.wait_for("the batch is trained", lambda: home.count("trained") == 4)
    home.assert_sound(updates=1)


def test_a_rank_that_dies_while_nothing_is_learned_is_missed(home):
    process = home.fork(**TWO)
    home.wait_for("it waits", lambda: home.phase() == "waiting")
    (follower,) = [child for child in others(home) if "spawn_main" in " ".join(child.cmdline())]
    follower.kill()
    assert process.wait(timeout=60) == 1
    assert "lost each other" in home.log()
