"""One update: what moves, what must not, and that the data it learns from is what the policy really did."""

import dataclasses
import math

import pytest
import torch

from online_sao.algorithm.calibration import reward_drop
from online_sao.algorithm.recipes import CreditInputs, Recipe, critic_advantages
from online_sao.config import GateSettings
from online_sao.experience.batching import TrainBatch, pack
from online_sao.learner import policy_training
from online_sao.learner.learner import UpdateCancelledError
from online_sao.models.policy import token_logprobs
from online_sao.publishing.gates import check


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def behaving(batch: TrainBatch, index: int, token: int, logprob: float) -> TrainBatch:
    """The batch with another behavior logprob for one action token of one trajectory."""
    trajectory = batch.trajectories[index]
    position = [i for i, flag in enumerate(trajectory.loss_mask) if flag][token]
    logprobs = list(trajectory.behavior_logprobs)
    logprobs[position] = logprob
    changed = dataclasses.replace(trajectory, behavior_logprobs=tuple(logprobs))
    return pack([changed if i == index else other for i, other in enumerate(batch.trajectories)], 1000)


# --- the data is the policy's own ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_on_policy_data_at_lag_zero_is_never_masked(make_bench, temperature):
    bench = make_bench()
    bench.learner.update(bench.batch())  # a policy that is no longer the base

    report = bench.learner.update(bench.batch(temperature=temperature, first_id=10))

    assert report.metrics["policy/masked_fraction"] == 0.0
    assert report.masked_fraction == (0.0, 0.0, 0.0, 0.0)
    assert report.metrics["policy/abs_log_ratio_unmasked"] < 1e-4
    assert report.metrics["policy/ess_fraction"] == pytest.approx(1.0, abs=1e-4)
    assert report.metrics["policy/kl_behavior_current_k3"] < 1e-6


def test_data_of_another_temperature_than_it_says_is_noticed(bench):
    hot = bench.batch(temperature=0.3)
    lying = pack([dataclasses.replace(t, temperatures=(1.0,) * len(t.token_ids)) for t in hot.trajectories], 1000)

    assert bench.learner.update(lying).metrics["policy/masked_fraction"] > 0.1


def test_packed_trajectories_do_not_see_each_other(bench):
    bench.learner.update(bench.batch())
    packed = bench.batch(first_id=20)
    (microbatch,) = packed.microbatches
    inputs = (microbatch.input_ids, microbatch.position_ids, microbatch.segment_ids, microbatch.state_positions)
    learner = bench.learner
    with torch.no_grad():
        together = token_logprobs(learner.policy.logits(learner.policy.states(*inputs)), microbatch.action_ids, microbatch.temperatures)
        values = learner.value.values(*inputs)
        base = learner._base.of(microbatch)[microbatch.state_positions]

    for index, trajectory in enumerate(packed.trajectories):
        (alone,) = pack([trajectory], 1000).microbatches
        own = microbatch.trajectory_index == index
        single = (alone.input_ids, alone.position_ids, alone.segment_ids, alone.state_positions)
        with torch.no_grad():
            logprobs = token_logprobs(learner.policy.logits(learner.policy.states(*single)), alone.action_ids, alone.temperatures)
        torch.testing.assert_close(together[own], logprobs, atol=1e-5, rtol=0)
        torch.testing.assert_close(values[own], learner.value.values(*single), atol=1e-5, rtol=0)
        torch.testing.assert_close(base[own], learner._base.of(alone)[alone.state_positions], atol=1e-5, rtol=0)


# --- what moves ---------------------------------------------------------------------------------------------------------------------------


def assert_values_learn(bench) -> None:
    """Value updates move the head and every matrix of the value adapter, and nothing else: no attention, no base weight, no policy."""
    frozen = {name: p.detach().clone() for name, p in bench.learner._backbone.module.named_parameters() if ".value." not in name}
    before = bench.value()
    batch = bench.batch()
    impossible = pack([dataclasses.replace(t, behavior_logprobs=(1000.0,) * len(t.token_ids)) for t in batch.trajectories], 1000)

    bench.learner.update(impossible)  # every token is masked: value updates are all there is

    after = bench.value()
    assert not any("self_attn" in name for name in before)
    assert sum("mlp" in name for name in before) == 2 * 3 * 2
    for name in before:
        assert not torch.equal(before[name], after[name]), f"{name} has not moved"
    for name, parameter in bench.learner._backbone.module.named_parameters():
        if ".value." not in name:
            assert torch.equal(parameter, frozen[name]), f"{name} has moved"


def test_value_updates_move_the_value_adapter_and_head_alone(make_bench):
    # Three: the first moves the head (the adapter's gradient goes through it), the second LoRA B, the third LoRA A.
    assert_values_learn(make_bench(value_updates=3))


@pytest.mark.parametrize("where", ["body", "loss"])
def test_a_detached_critic_is_noticed(make_bench, monkeypatch, where):
    bench = make_bench(value_updates=3)
    value = bench.learner.value
    if where == "body":
        hidden = bench.learner._backbone.hidden
        monkeypatch.setattr(
            bench.learner._backbone,
            "hidden",
            lambda adapter, *inputs: hidden(adapter, *inputs).detach() if adapter == "value" else hidden(adapter, *inputs),
        )
    else:
        values = value.values
        monkeypatch.setattr(value, "values", lambda *inputs: values(*inputs).detach().requires_grad_())

    with pytest.raises(AssertionError, match="has not moved"):
        assert_values_learn(bench)


def test_the_value_model_fits_its_targets(make_bench):
    bench = make_bench(value_updates=20)
    batch = bench.batch()
    first = bench.learner.update(batch).metrics["value/loss"]
    second = bench.learner.update(batch).metrics["value/loss"]

    assert second < 0.2 * first


def test_the_policy_update_moves_every_policy_matrix_and_no_base_weight(bench):
    base = {name: p.detach().clone() for name, p in bench.learner._backbone.module.named_parameters() if "lora_" not in name}
    before = bench.policy()

    bench.learner.update(bench.batch())
    bench.learner.update(bench.batch())  # LoRA A moves from the second update on, when B is no longer zero

    after = bench.policy()
    assert len(before) == 2 * 7 * 2
    for name in before:
        assert not torch.equal(before[name], after[name]), name
    for name, weight in base.items():
        assert torch.equal(weight, dict(bench.learner._backbone.module.named_parameters())[name]), name


@pytest.mark.parametrize(("reward", "direction"), [(1.0, 1), (-1.0, -1)])
def test_reward_moves_the_logprob_of_what_was_sampled(make_bench, reward, direction):
    bench = make_bench(value_updates=0)  # no critic: the advantage is the reward
    trajectory = bench.sample(1, reward=reward)
    prompt, tokens = trajectory.token_ids[:6], trajectory.token_ids[6:]
    before = sum(bench.learner.score(prompt, tokens, 1.0))

    bench.learner.update(pack([trajectory], 1000))

    change = sum(bench.learner.score(prompt, tokens, 1.0)) - before
    assert change * direction > 0.01


def test_steps_are_short_while_every_answer_pleases_and_long_again_after_a_shift(make_bench):
    numbers = {"value_updates": 0, "anchor_coefficient": 0.0, "policy_learning_rate": 1e-3}
    full, short = make_bench(**numbers), make_bench(**numbers, least_step=0.25)
    moved = []
    for bench in (full, short):
        before = bench.policy()
        metrics = bench.learner.update(bench.batch(rewards=(1.0,) * 8)).metrics
        moved.append({name: tensor - before[name] for name, tensor in bench.policy().items()})
        assert metrics["policy/learning_rate"] == pytest.approx(1e-3 if bench is full else 0.25e-3)
    # Adam's first step is the learning rate, whatever the gradient.
    assert all(torch.allclose(moved[1][name], 0.25 * step, atol=1e-7) for name, step in moved[0].items())
    then = [short.learner.update(short.batch(rewards=(reward,) * 8)).metrics["policy/learning_rate"] for reward in (0.0, -1.0)]
    older = 0.5**0.5  # what eight trajectories weigh with eight after them, by a half-life of sixteen
    assert then == pytest.approx([1e-3 * (1 - older / (1 + older)), 1e-3])


def test_the_anchor_pulls_towards_the_base(make_bench):
    bench = make_bench(value_updates=0, anchor_coefficient=1.0)
    free = make_bench(value_updates=0)
    for wanting in (bench, free):
        wanted = wanting.batch(rewards=(5.0, 5.0))
        for _ in range(3):
            wanting.learner.update(wanted)
    indifferent = bench.batch(rewards=(0.0, 0.0))

    distances = [bench.learner.update(indifferent).metrics["policy/kl_base"] for _ in range(6)]
    unanchored = [free.learner.update(indifferent).metrics["policy/kl_base"] for _ in range(6)]

    assert distances[0] > 0.01
    assert distances[-1] < 0.5 * distances[0]
    assert unanchored[-1] > 0.5 * unanchored[0]


def test_the_anchor_pulls_harder_after_a_loss_as_far_as_the_last_update_found_the_policy_away(make_bench, tmp_path):
    numbers = {"value_updates": 0, "anchor_coefficient": 0.1, "anchor_gain": 10.0, "anchor_reach": 2.0}  # twice as far as it has been
    bench = make_bench(**numbers)
    for _ in range(4):
        away = bench.learner.update(bench.batch(rewards=(1.0,) * 8)).metrics["policy/kl_base"]
    assert 0.01 < away < 2.0
    bench.learner.save(tmp_path)
    loss = bench.batch(rewards=(-1.0,) * 8)

    found = bench.learner.update(loss).metrics["policy/anchor_coefficient"]

    drop = reward_drop([1.0] * 32 + [-1.0] * 8, bench.learner.recipe.baseline_half_life, bench.learner.recipe.calibration_half_life)
    assert drop > 0
    assert found == pytest.approx(0.1 * (1 + 10 * drop * (1 / 2.0) ** 2))
    resumed = make_bench(**numbers)
    resumed.learner.load(tmp_path)
    assert resumed.learner.update(loss).metrics["policy/anchor_coefficient"] == found


# --- the order of an update -----------------------------------------------------------------------------------------------------------------


def test_advantages_may_be_made_from_the_values_before_the_update(make_bench):
    seen: list[CreditInputs] = []

    def spy(recipe: Recipe, trajectories, history):
        seen.extend(trajectories)
        return critic_advantages(recipe, trajectories, history)

    bench = make_bench(fresh_values=False)
    bench.learner.update(bench.batch())
    batch = bench.batch(first_id=10)
    (microbatch,) = batch.microbatches
    inputs = (microbatch.input_ids, microbatch.position_ids, microbatch.segment_ids, microbatch.state_positions)
    before = bench.learner.value.values(*inputs).detach()
    bench.learner.recipe = dataclasses.replace(bench.learner.recipe, credit=spy)

    bench.learner.update(batch)

    after = bench.learner.value.values(*inputs).detach()
    for index, credit in enumerate(seen):
        own = microbatch.trajectory_index == index
        torch.testing.assert_close(credit.values, before[own], atol=1e-6, rtol=0)
        assert not torch.allclose(credit.values, after[own], atol=1e-3)


def test_advantages_are_made_from_fresh_values_and_unmoved_rewards(make_bench):
    seen: list[CreditInputs] = []

    def spy(recipe: Recipe, trajectories, history):
        seen.extend(trajectories)
        return critic_advantages(recipe, trajectories, history)

    bench = make_bench()
    bench.learner.recipe = dataclasses.replace(bench.learner.recipe, credit=spy)
    batch = bench.batch(max_tokens=15)  # several microbatches, in another order than the trajectories
    assert len(batch.microbatches) > 1

    report = bench.learner.update(batch)

    for trajectory, inputs in zip(batch.trajectories, seen, strict=True):
        (alone,) = pack([trajectory], 1000).microbatches
        # The policy update moves no value weight, so the value model still stands where it stood when the advantages were made.
        fresh = bench.learner.value.values(alone.input_ids, alone.position_ids, alone.segment_ids, alone.state_positions).detach()
        torch.testing.assert_close(inputs.values, fresh, atol=1e-6, rtol=0)
        assert inputs.rewards.tolist() == pytest.approx([r for r, m in zip(trajectory.rewards, trajectory.loss_mask, strict=True) if m])
        assert bool(inputs.loss_mask.all())
    assert report.metrics["value/mean"] == 0.0  # what explained variance judges is from before


def test_value_only_passes_come_with_the_first_update_alone(make_bench):
    bench = make_bench(value_warmup_updates=3, value_updates=2)
    counts = [bench.learner.update(bench.batch()).metrics["value/updates"] for _ in range(2)]
    assert counts == [5, 2]


def test_explained_variance_judges_values_from_before_the_update(make_bench):
    bench = make_bench(value_updates=30)
    batch = bench.batch()
    first, second = (bench.learner.update(batch).metrics for _ in range(2))

    assert first["value/explained_variance"] == 0.0  # the values were all 0
    assert second["value/explained_variance_trajectories"] == 8
    assert 0.3 < second["value/explained_variance"] < 0.7  # half of the window untrained, half well fitted


@pytest.mark.parametrize("max_tokens", [10, 22])
def test_microbatches_add_up_to_the_batch(make_bench, monkeypatch, max_tokens):
    def gradients(tokens: int) -> list[torch.Tensor]:
        bench = make_bench(anchor_coefficient=0.1)
        bench.learner.update(bench.batch())
        collected: list[torch.Tensor] = []

        def collect(optimizer: torch.optim.Optimizer) -> None:
            collected.extend(p.grad.clone() for group in optimizer.param_groups for p in group["params"])

        batch = bench.batch(first_id=30, max_tokens=tokens)
        with monkeypatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", collect)
            bench.learner.update(batch)
        return collected

    for whole, split in zip(gradients(1000), gradients(max_tokens), strict=True):
        torch.testing.assert_close(whole, split, atol=1e-6, rtol=1e-4)


def test_the_vocabulary_may_be_met_in_pieces(make_bench, monkeypatch):
    def after_update(head_tokens: int) -> dict[str, torch.Tensor]:
        bench = make_bench(anchor_coefficient=0.1, policy_learning_rate=1e-3)
        monkeypatch.setattr(policy_training, "HEAD_TOKENS", head_tokens)
        bench.learner.update(bench.batch())
        return bench.policy()

    whole, pieces = after_update(1000), after_update(3)
    for name in whole:
        torch.testing.assert_close(whole[name], pieces[name], atol=1e-5, rtol=0)


def test_a_cancelled_update_says_so(bench):
    answers = iter([False, False, True])
    with pytest.raises(UpdateCancelledError):
        bench.learner.update(bench.batch(), cancelled=lambda: next(answers))


# --- what must not get in -------------------------------------------------------------------------------------------------------------------


def test_a_batch_masked_whole_moves_the_policy_nowhere(make_bench):
    bench = make_bench(anchor_coefficient=0.5)
    bench.learner.update(bench.batch())  # Adam remembers a direction
    before, snapshot, values = bench.policy(), bench.learner.snapshot(), bench.value()
    batch = bench.batch()
    far = pack([dataclasses.replace(t, behavior_logprobs=(-1000.0,) * len(t.token_ids)) for t in batch.trajectories], 1000)

    report = bench.learner.update(far)

    assert report.metrics["policy/masked_fraction"] == report.metrics["policy/masked_fraction_high"] == 1.0
    assert report.metrics["policy/step_applied"] == 0.0
    assert report.problem is None
    assert same(before, bench.policy())
    assert "masked_fraction" in (check(report, GateSettings()) or "")
    bench.learner.restore(snapshot)
    assert same(values, bench.value())


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_token_with_a_broken_logprob_is_masked_and_counted(make_bench, broken):
    results = []
    for logprob in (broken, 1000.0):  # 1000: masked because its ratio is too small
        bench = make_bench()
        report = bench.learner.update(behaving(bench.batch(), 0, 2, logprob))
        results.append(bench.policy())
        assert report.masked_fraction == (0.2, 0.0, 0.0, 0.0)
        assert report.metrics["policy/non_finite_tokens"] == (0.0 if logprob == 1000.0 else 1.0)
        assert report.problem is None
    assert same(*results)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_trajectory_with_a_broken_reward_teaches_nothing(make_bench, reward):
    poisoned = make_bench()
    report = poisoned.learner.update(poisoned.batch(rewards=(1.0, reward)))
    assert report.problem is None
    assert report.metrics["data/non_finite_rewards"] == 1.0
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert all(bool(torch.isfinite(tensor).all()) for tensor in [*poisoned.policy().values(), *poisoned.value().values()])

    # What is left is the other trajectory, with the same N (a rejected token makes the step smaller, not the others larger).
    other = make_bench()
    trajectories = other.batch(rewards=(1.0, 0.0)).trajectories
    far = dataclasses.replace(trajectories[1], behavior_logprobs=(1000.0,) * len(trajectories[1].token_ids))
    lone = pack([trajectories[0], far], 1000)
    without_critic = [make_bench(value_updates=0) for _ in range(2)]
    without_critic[0].learner.update(without_critic[0].batch(rewards=(1.0, reward)))
    without_critic[1].learner.update(lone)
    for name, tensor in without_critic[0].policy().items():
        torch.testing.assert_close(tensor, without_critic[1].policy()[name], atol=1e-6, rtol=0)


def test_a_poisoned_batch_is_flagged_refused_and_undone(bench):
    bench.learner.update(bench.batch())
    snapshot = bench.learner.snapshot()
    policy, value = bench.policy(), bench.value()

    report = bench.learner.update(bench.batch(rewards=(1.0, 1e30, -1.0, 0.0)))

    assert report.problem is not None
    assert check(report, GateSettings()) == report.problem
    assert same(policy, bench.policy())  # the step itself was not applied …
    bench.learner.restore(snapshot)
    assert same(policy, bench.policy())  # … and nothing of the update is left
    assert same(value, bench.value())
    assert bench.learner.updates == 1


def test_a_huge_but_finite_gradient_is_refused_by_its_norm(bench):
    report = bench.learner.update(bench.batch(rewards=(1.0, 1e8, -1.0, 0.0)))
    assert report.problem is None
    assert "grad_norm" in (check(report, GateSettings()) or "")


def test_weights_that_are_not_numbers_are_flagged(bench):
    batch = bench.batch()
    with torch.no_grad():
        next(iter(bench.learner.policy.parameters().values()))[0, 0] = math.nan
    assert check(bench.learner.update(batch), GateSettings()) is not None
