"""Value pretraining: it learns what is there to learn, keeps nothing that does not help, and moves no policy."""

import dataclasses

import pytest
import torch

from online_sao.learner.learner import UpdateCancelledError


def logged(bench, count=40, seed=0):
    """Trajectories whose reward is written on their first token: a value model can learn it."""
    trajectories = bench.batch(rewards=(1.0, -1.0) * (count // 2)).trajectories
    marked = []
    for trajectory in trajectories:
        token = 5 if trajectory.reward > 0 else 9
        marked.append(dataclasses.replace(trajectory, token_ids=(token, *trajectory.token_ids[1:])))
    return marked


def test_a_learnable_reward_is_learned_and_no_policy_weight_moves(make_bench):
    bench = make_bench(value_learning_rate=2e-2)
    before, policy = bench.value(), bench.policy()
    calls = []
    report = bench.learner.pretrain_value(logged(bench, 120), max_tokens=500, max_epochs=8, progress=lambda done, of: calls.append((done, of)))
    assert (report.trained, report.held_out) == (96, 24)
    assert report.epochs >= 1
    assert report.explained_variance_after > 0.5 > report.explained_variance_before
    assert any(not torch.equal(before[name], tensor) for name, tensor in bench.value().items())
    assert all(torch.equal(policy[name], tensor) for name, tensor in bench.policy().items())
    assert calls[0] == (1, 8 * 12)
    assert not bench.learner.value_is_untrained
    # The held-out ones stand in the window, so the next update makes no warm-up and calibrates on them.
    assert bench.learner.update(bench.batch(first_id=500)).metrics["value/explained_variance_trajectories"] == 24 + 4


def test_what_does_not_help_is_not_kept(bench):
    """A reward that nothing foretells: the held-out fifth is explained no better, and the value model stays as it was."""
    trajectories = logged(bench)
    same_token = [dataclasses.replace(t, token_ids=(5, *t.token_ids[1:])) for t in trajectories[:20]]
    flipped = [dataclasses.replace(t, rewards=tuple(-r for r in t.rewards)) for t in same_token]
    before = bench.value()
    report = bench.learner.pretrain_value(same_token + flipped, max_tokens=500, max_epochs=3)
    if report.epochs == 0:
        assert all(torch.equal(before[name], tensor) for name, tensor in bench.value().items())
        assert bench.learner.value_is_untrained
    assert report.explained_variance_after >= report.explained_variance_before
    assert report.explained_variance_after < 0.3


def test_an_epoch_that_explains_less_is_undone_to_the_bit(make_bench):
    """A learning rate that destroys: epochs 0, and weights, optimiser and window are those from before."""
    bench = make_bench(value_learning_rate=1e9)
    snapshot = bench.learner.snapshot()
    report = bench.learner.pretrain_value(logged(bench), max_tokens=500)
    assert report.epochs == 0
    after = bench.learner.snapshot()
    assert all(torch.equal(snapshot.value[name], after.value[name]) for name in snapshot.value)
    assert after.value_optimizer["state"] == {}
    assert bench.learner.value_is_untrained


def test_a_cancelled_pretraining_leaves_nothing(bench):
    before = bench.value()
    asked = []

    def cancelled():
        asked.append(None)
        return len(asked) > 6

    with pytest.raises(UpdateCancelledError):
        bench.learner.pretrain_value(logged(bench), max_tokens=500, cancelled=cancelled)
    assert all(torch.equal(before[name], tensor) for name, tensor in bench.value().items())
    with pytest.raises(ValueError, match="at least two"):
        bench.learner.pretrain_value(logged(bench)[:1], max_tokens=500)


def test_the_same_seed_gives_the_same_value_model(make_bench):
    values = []
    for _ in range(2):
        bench = make_bench()
        bench.learner.pretrain_value(logged(bench), max_tokens=500, seed=3)
        values.append(bench.value())
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
