"""kill -9 at every point of the cycle, then a learner on the same data: nothing trained twice, nothing lost, versions whole, learning goes on."""

import hashlib
import signal

import pytest

BEFORE_COMMIT = ["before the update", "inside the update", "after the update", "before the checkpoint's rename"]
AFTER_COMMIT = ["after the checkpoint's rename", "after the publish's rename", "inside the transaction", "after the transaction"]


@pytest.mark.parametrize("point", BEFORE_COMMIT + AFTER_COMMIT)
def test_killed(home, point):
    home.insert_scored()
    assert home.fork(point).wait(timeout=120) == -signal.SIGKILL, home.log()

    committed = point in AFTER_COMMIT
    assert home.checkpoints() == ([1] if committed else [])
    assert home.count("trained" if point == "after the transaction" else "claimed") == 4
    claim_at_death = home.rows("SELECT DISTINCT claim_id FROM trajectories")[0][0]
    weights = hashlib.sha256((home.checkpoint(1) / "policy.safetensors").read_bytes()).hexdigest() if committed else None

    home.fork()
    home.wait_for("the batch is trained", lambda: home.count("trained") == 4)
    first_claim = home.rows("SELECT claim_id FROM updates WHERE update_number = 1")[0][0]
    assert (first_claim == claim_at_death) == committed  # before the commit point it is claimed anew, after it never again
    if committed:
        assert hashlib.sha256((home.checkpoint(1) / "policy.safetensors").read_bytes()).hexdigest() == weights
    home.assert_sound(updates=1)

    home.insert_scored()
    home.wait_for("a new batch is trained", lambda: home.head() == (2, 2))
    home.process.send_signal(signal.SIGTERM)
    assert home.process.wait(timeout=30) == 0
    home.assert_sound(updates=2)
