"""The learner process from outside: how it ends, what it refuses, and what it does with data and weights that must not be learned from."""

import json
import signal
import subprocess
import sys
import time

import psutil


def test_it_ends_cleanly_inside_an_update_and_gives_its_claim_back(home):
    home.insert_scored()
    process = home.fork("never ending update")
    home.wait_for("the update has begun", lambda: home.phase() == "updating")

    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    assert process.wait(timeout=5) == 0
    assert time.monotonic() - asked < 5
    assert home.count("ready") == 4
    assert home.phase() == "stopped"
    assert home.rows("SELECT count(*) FROM leases") == [(0,)]
    assert home.checkpoints() == []


def test_it_ends_with_the_process_that_started_it(home):
    code = "import os, subprocess, sys, time; os.environ['ONLINE_SAO_SUPERVISOR_PID'] = str(os.getpid());"
    code += "p = subprocess.Popen([sys.executable, '-m', 'online_sao.cli', 'learn']); print(p.pid, flush=True); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=home.data_dir, env=home.full_environment(), stdout=subprocess.PIPE, text=True)
    learner = psutil.Process(int(parent.stdout.readline()))
    home.wait_for("the learner waits", lambda: home.phase() == "waiting")

    parent.kill()
    parent.wait()
    parent.stdout.close()
    # Nobody reaps it here: a zombie has ended too.
    home.wait_for("the learner has ended", lambda: not learner.is_running() or learner.status() == psutil.STATUS_ZOMBIE)
    assert home.phase() == "stopped"


def test_a_second_learner_and_other_models_are_refused(home):
    home.insert_scored()
    first = home.fork()
    home.wait_for("trained", lambda: home.head() == (1, 1))
    second = subprocess.run(
        [sys.executable, "-m", "online_sao.cli", "learn"], cwd=home.data_dir, env=home.full_environment(), capture_output=True, text=True, timeout=120
    )
    assert second.returncode == 3
    assert "already the learner process" in " ".join(second.stderr.split())
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 0

    assert home.fork(ONLINE_SAO_POLICY__LORA_RANK="8").wait(timeout=60) == 1
    assert "ConfigurationError" in home.log()
    assert "LoRA rank 4 and alpha 32; the settings now say rank 8" in home.log()
    assert home.phase() == "stopped"
    assert "LoRA rank" in home.rows("SELECT detail FROM learner")[0][0]
    home.assert_sound(updates=1)


def test_damaged_rows_and_refused_updates_stop_nothing(home):
    home.insert_scored(reward=None)
    home.insert_scored(token_ids=[5, 6])  # the others of the eight are sound: one batch of four and two left over
    home.fork(ONLINE_SAO_LEARNING__MIN_BATCH_SIZE="2", ONLINE_SAO_LEARNING__MAX_BATCH_AGE_SECONDS="1")
    home.wait_for("all are dealt with", lambda: home.count("trained") == 6 and home.count("rejected") == 2)
    reasons = [reason for (reason,) in home.rows("SELECT reason FROM trajectories WHERE state = 'rejected'")]
    assert all(reason.startswith("cannot be trained") for reason in reasons)

    home.insert_scored(behavior_logprobs=[float("nan")] * 5)
    home.wait_for("a broken logprob is masked, not fatal", lambda: home.count("trained") == 10)
    fractions = [fraction for (fraction,) in home.rows("SELECT masked_fraction FROM trajectories WHERE state = 'trained' ORDER BY id")]
    assert fractions[-1] == 1.0
    assert set(fractions[:-1]) != {1.0}
    home.process.send_signal(signal.SIGTERM)
    assert home.process.wait(timeout=30) == 0
    head, kept = home.head(), home.checkpoints()

    home.insert_scored()
    home.fork(ONLINE_SAO_GATES__MIN_ENTROPY="50")
    home.wait_for("the gate refuses", lambda: home.count("rejected") == 6)
    accepted, version, reason, metrics = home.rows("SELECT accepted, policy_version, reason, metrics FROM updates ORDER BY update_number DESC")[0]
    assert (accepted, version) == (0, None)
    assert "policy/entropy" in reason
    assert json.loads(metrics)["policy/entropy"] > 0
    assert (home.head(), home.checkpoints()) == (head, kept)
    assert home.process.poll() is None
