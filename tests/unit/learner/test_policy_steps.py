"""An update in which the policy takes several steps, and the proximal policy that such an update begins with."""

import math
from typing import Any

import pytest
import torch
from tiny_learner import Bench, make_bench, moved

from online_sao.algorithm.recipes import Recipe, WeighInputs, decoupled_weights, dis_weights, ppo_weights
from online_sao.experience.batching import pack
from online_sao.learner import policy_training
from online_sao.models.policy import PolicyModel


def steps_taken(bench: Bench) -> list[list[torch.Tensor]]:
    taken: list[list[torch.Tensor]] = []
    bench.learner._policy_optimizer.register_step_pre_hook(
        lambda optimizer, *_: taken.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])
    )
    return taken


def test_one_step_asks_for_no_further_pass_and_several_ask_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    states = PolicyModel.states
    monkeypatch.setattr(PolicyModel, "states", lambda self, *inputs: passes.append(1) or states(self, *inputs))
    for minibatches, expected in ((1, 1), (2, 2)):
        bench = make_bench(policy_minibatches=minibatches)
        batch = bench.conversations(max_tokens=12)
        count = len(batch.microbatches)
        assert count > 2
        passes.clear()
        bench.learner.update(batch)
        assert len(passes) == expected * count


def test_proximal_is_the_policy_as_the_update_began() -> None:
    seen: list[WeighInputs] = []

    def spy(chosen: Recipe, inputs: WeighInputs) -> Any:
        seen.append(inputs)
        return dis_weights(chosen, inputs)

    bench = make_bench(policy_minibatches=2, weigh=spy, value_updates=0)
    taken = steps_taken(bench)
    batch = bench.conversations(max_tokens=16, shift=0.05)
    count = len(batch.microbatches)
    assert count >= 3
    order = [*range(0, count, 2), *range(1, count, 2)]

    report = bench.learner.update(batch)

    assert len(taken) == 2
    assert len(seen) == count
    for position, index in enumerate(order):
        inputs, microbatch = seen[position], batch.microbatches[index]
        # The behavior logprobs are those of the policy before the update, plus the shift.
        torch.testing.assert_close(inputs.proximal_logprobs, microbatch.behavior_logprobs - 0.05, atol=1e-5, rtol=0)
        first_step = position < len(range(0, count, 2))
        assert torch.allclose(inputs.current_logprobs, inputs.proximal_logprobs, atol=1e-6) == first_step
    assert report.metrics["policy/kl_behavior_current_k3"] > 0
    assert [len(index) for index in (report.masked_fraction, batch.trajectories)] == [6, 6]


def test_each_step_is_that_of_its_share_of_the_batch() -> None:
    """The first step has the gradient that an update on its microbatches alone has; the second that of the others from where the first one led."""
    numbers = {"policy_minibatches": 2, "value_updates": 0, "anchor_coefficient": 0.1, "policy_learning_rate": 1e-3}
    whole = make_bench(**numbers)
    taken = steps_taken(whole)
    batch = whole.conversations(max_tokens=16)
    whole.learner.update(batch)
    alone = make_bench(**(numbers | {"policy_minibatches": 1}))
    expected = steps_taken(alone)
    for first in (0, 1):
        microbatches = [batch.microbatches[index] for index in range(first, len(batch.microbatches), 2)]
        owners = sorted({int(index) for microbatch in microbatches for index in microbatch.trajectory_index})
        alone.learner.update(pack([batch.trajectories[index] for index in owners], 16))
    assert len(taken) == len(expected) == 2
    for mine, theirs in zip(taken, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


def test_more_steps_than_microbatches_are_as_many_as_there_are_microbatches() -> None:
    results = []
    for minibatches in (1, 4):
        bench = make_bench(policy_minibatches=minibatches)
        bench.learner.update(bench.conversations(max_tokens=1000))
        results.append(bench.policy())
    assert not moved(*results)


def test_a_treatment_of_three_policies_is_one_of_two_where_they_are_the_same() -> None:
    """One step: IcePop is DIS in the same band, and decoupled PPO on what the policy itself sampled is PPO."""
    band = {"epsilon_low": 0.5, "epsilon_high": 4.0, "proximal_ratio_low": 0.5, "proximal_ratio_high": 5.0}
    pairs = [
        (0.1, {"weigh": dis_weights, **band}, {"weigh": decoupled_weights, **band}),
        (0.0, {"weigh": ppo_weights, "epsilon_high": 0.2}, {"weigh": decoupled_weights, "epsilon_high": 0.2}),
    ]
    for shift, one, other in pairs:
        benches = [make_bench(**numbers) for numbers in (one, other)]
        for bench in benches:
            bench.learner.update(bench.conversations(shift=shift))
        assert not moved(benches[0].policy(), benches[1].policy())


def test_a_step_that_is_not_finite_is_told_though_another_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(policy_minibatches=2)
    batch = bench.conversations(max_tokens=16)
    answers = iter([0.5, None])
    monkeypatch.setattr(policy_training, "step", lambda *_: next(answers))
    report = bench.learner.update(batch)
    assert "not finite" in (report.problem or "")
    assert math.isnan(report.metrics["policy/grad_norm"])
    assert len(report.masked_fraction) == 6
