"""``online-sao pretrain-value`` on a real data folder: what it teaches, where the next learner finds it, and whom it does not disturb."""

import json
import signal
import subprocess
import sys

import torch
from safetensors.torch import load_file


def pretrain(home, **environment):
    command = [sys.executable, "-m", "online_sao.cli", "pretrain-value"]
    return subprocess.run(command, cwd=home.data_dir, env=home.full_environment(**environment), capture_output=True, text=True, timeout=300)


def test_logged_scores_teach_a_value_model_that_the_next_learner_starts_with(home):
    nothing = pretrain(home)
    assert nothing.returncode == 2
    assert "no scored interactions" in nothing.stderr

    home.insert_scored(120)
    # A reward the prompt foretells: there is something to learn.
    for reward, token in ((1.0, 7), (-1.0, 9)):
        home.execute(
            "UPDATE interactions SET prompt_ids = ? WHERE id IN (SELECT interaction_id FROM trajectories WHERE reward = ?)",
            json.dumps([token] * 6),
            reward,
        )
    done = pretrain(home, ONLINE_SAO_LEARNING__VALUE_LEARNING_RATE="0.02")
    assert done.returncode == 0, done.stderr
    assert "96 scored interactions trained on, 24 held out" in done.stdout
    before, after = (float(number) for number in done.stdout.split("explained variance of those")[1].split()[0:3:2])
    assert after > 0.3 > before
    assert "the next learner starts with it" in done.stdout
    saved = load_file(home.data_dir / "checkpoints" / "value-000000" / "value.safetensors")
    assert home.count("ready") == 120  # it consumed nothing
    assert home.checkpoints() == []

    # Frozen value model: what the learner's first checkpoint holds is what was pretrained, and no other pretraining came in between.
    learner = home.fork(ONLINE_SAO_LEARNING__VALUE_UPDATES="0")
    home.wait_for("an update", lambda: home.checkpoints())
    learner.send_signal(signal.SIGTERM)
    learner.wait(timeout=60)
    first = load_file(home.checkpoint(home.checkpoints()[0]) / "value.safetensors")
    assert all(torch.equal(saved[name], first[name]) for name in saved)
    assert "value model pretrained" not in home.log()


def test_a_running_learner_is_not_disturbed(home):
    home.fork()
    home.wait_for("the learner waits", lambda: home.phase() == "waiting")
    refused = pretrain(home)
    assert refused.returncode == 2
    assert "already the learner process" in refused.stderr
    assert not (home.data_dir / "checkpoints" / "value-000000").exists()


def test_a_recipe_without_a_value_model_is_refused(home):
    home.insert_scored(8)
    refused = pretrain(home, ONLINE_SAO_LEARNING__RECIPE="running-mean")
    assert refused.returncode == 2
    assert "running-mean has no value model" in refused.stderr
