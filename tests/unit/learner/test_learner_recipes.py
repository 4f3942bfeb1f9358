"""One learner follows every recipe: each makes real updates, and what a recipe's numbers and flags ask of the learner is what it does."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from rank_processes import run_ranks
from tiny_learner import Bench, bench_of, make_bench

from online_sao.algorithm.recipes import (
    CreditInputs,
    Recipe,
    WeighInputs,
    critic_advantages,
    decoupled_weights,
    dis_weights,
    ppo_weights,
    recipe,
    recipe_names,
    registry,
)
from online_sao.config.learning import RecipeName
from online_sao.errors import ConfigurationError
from online_sao.experience.batching import TrainBatch, pack
from online_sao.learner import policy_training
from online_sao.learner.layout import chain_positions
from online_sao.models.policy import PolicyModel

QUICK = {"policy_learning_rate": 1e-2, "value_learning_rate": 1e-2, "anchor_coefficient": 0.0}
TURNS = ("....AAA..A...AA", "..A.AA", "...AAAA", ".A....A", "......AAA.AAA", "..AA")


def conversations(bench: Bench, *, max_tokens: int = 40, first_id: int = 0, shift: float = 0.0) -> TrainBatch:
    """Six trajectories, several of them with observations between actions, three to a group."""
    rewards = (1.0, -1.0, 0.5, -0.5, 0.0, 0.8)
    made = (
        bench.conversation(first_id + number, turns, reward=reward, group_id=number % 2, shift=shift)
        for number, (turns, reward) in enumerate(zip(TURNS, rewards, strict=True))
    )
    return pack(list(made), max_tokens)


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("name", "preset"), [(name, preset) for preset in ("live", "paper") for name in recipe_names(preset)])
def test_every_recipe_makes_updates_that_move_the_policy(name: str, preset: str) -> None:
    bench = bench_of(recipe(name, preset, **QUICK))
    for number in range(2):
        before, value = bench.policy(), bench.value()
        report = bench.learner.update(conversations(bench, first_id=10 * number))
        assert report.problem is None
        assert all(math.isfinite(value) for value in report.metrics.values())
        assert report.metrics["policy/step_applied"] == 1.0
        assert report.metrics["policy/advantage_abs_mean"] > 0
        assert len(report.masked_fraction) == 6
        assert moved(before, bench.policy())
        assert moved(value, bench.value()) == bench.learner.recipe.uses_values


def test_the_settings_name_every_recipe() -> None:
    assert sorted(get_args(RecipeName)) == list(recipe_names())


# --- several policy steps an update --------------------------------------------------------------------------------------------------------


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
        batch = conversations(bench, max_tokens=12)
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
    batch = conversations(bench, max_tokens=16, shift=0.05)
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
    batch = conversations(whole, max_tokens=16)
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
        bench.learner.update(conversations(bench, max_tokens=1000))
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
            bench.learner.update(conversations(bench, shift=shift))
        assert not moved(benches[0].policy(), benches[1].policy())


def several_steps(bench: Bench, batch: TrainBatch) -> dict[str, Any]:
    reports = [bench.learner.update(batch) for _ in range(2)]
    return {"metrics": reports[-1].metrics, "masked": reports[-1].masked_fraction, "weights": bench.policy() | bench.value()}


def test_two_ranks_take_the_same_steps_as_one(tmp_path: Path) -> None:
    numbers = {
        "policy_minibatches": 2,
        "weigh": decoupled_weights,
        "proximal_ratio_high": 5.0,
        "observation_values": True,
        "anchor_coefficient": 0.1,
        "policy_learning_rate": 1e-3,
    }
    batch = conversations(make_bench(), max_tokens=8, shift=0.1)
    assert len(batch.microbatches) == 5  # shares of 3 and 2: the first is not the same for both ranks
    alone = several_steps(make_bench(**numbers), batch)
    together = run_ranks(2, tmp_path, numbers, several_steps, batch)
    timeless = {name: value for name, value in alone["metrics"].items() if not name.endswith("/seconds")}
    assert {name: together["metrics"][name] for name in timeless} == pytest.approx(timeless, rel=1e-3, abs=1e-5)
    assert together["masked"] == alone["masked"]
    for name, tensor in alone["weights"].items():
        torch.testing.assert_close(together["weights"][name], tensor, rtol=1e-3, atol=1e-5)


def test_a_step_that_is_not_finite_is_told_though_another_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(policy_minibatches=2)
    batch = conversations(bench, max_tokens=16)
    answers = iter([0.5, None])
    monkeypatch.setattr(policy_training, "step", lambda *_: next(answers))
    report = bench.learner.update(batch)
    assert "not finite" in (report.problem or "")
    assert math.isnan(report.metrics["policy/grad_norm"])
    assert len(report.masked_fraction) == 6


# --- what credit is given ------------------------------------------------------------------------------------------------------------------


def credit_given(batch: TrainBatch, **numbers: Any) -> tuple[Bench, list[CreditInputs]]:
    seen: list[CreditInputs] = []

    def spy(chosen: Recipe, trajectories: Any, history: Any) -> Any:
        seen.extend(trajectories)
        return critic_advantages(chosen, trajectories, history)

    bench = make_bench(credit=spy, **numbers)
    bench.learner.update(batch)
    return bench, seen


def test_credit_knows_steps_and_groups() -> None:
    batch = conversations(make_bench(), max_tokens=20)
    _, seen = credit_given(batch)
    assert [inputs.step_index.tolist() for inputs in seen[:2]] == [[0, 0, 0, 1, 2, 2], [0, 1, 1]]
    assert [inputs.group_id for inputs in seen] == [0, 1, 0, 1, 0, 1]


def test_values_are_read_at_observations_where_a_recipe_asks_for_them() -> None:
    """Each at the state before its token, alone in a row or behind a shared prefix; rewards stay on action tokens."""
    plain = make_bench()
    made = [plain.conversation(1, "..A.AA", reward=0.5), plain.conversation(2, "..AA..A.", reward=-1.0), plain.conversation(3, "....A")]
    # A common beginning, as long as one of the prompts: the first state of a chain stands in the shared part of the row.
    start = made[0].token_ids[:2]
    batch = pack([dataclasses.replace(item, token_ids=start + item.token_ids[2:]) for item in made], 1000)
    assert len(batch.microbatches) == 1
    assert (batch.microbatches[0].segment_ids == 0).sum() == 2

    bench, seen = credit_given(batch, observation_values=True, value_updates=3)

    for trajectory, inputs in zip(batch.trajectories, seen, strict=True):
        actions = [position for position, flag in enumerate(trajectory.loss_mask) if flag]
        chain = torch.arange(actions[0], actions[-1] + 1)
        ids = torch.tensor(trajectory.token_ids)
        # Fresh values: the value model still stands where it stood when they were read.
        alone = bench.learner.value.values_without_gradient(ids, torch.arange(len(ids)), torch.zeros_like(ids), chain - 1)
        assert float(alone.abs().max()) > 0
        torch.testing.assert_close(inputs.values, alone, atol=1e-5, rtol=0)
        assert inputs.loss_mask.tolist() == [trajectory.loss_mask[position] for position in chain]
        assert inputs.rewards.tolist() == [trajectory.rewards[position] for position in chain]
        assert inputs.step_index[inputs.loss_mask].tolist() == credit_given(batch)[1][batch.trajectories.index(trajectory)].step_index.tolist()


def test_early_values_at_observations_are_from_before_the_value_updates() -> None:
    batch = conversations(make_bench())
    _, early = credit_given(batch, observation_values=True, fresh_values=False)
    assert all(float(inputs.values.abs().max()) == 0.0 for inputs in early)
    _, fresh = credit_given(batch, observation_values=True)
    assert all(float(inputs.values.abs().max()) > 0.0 for inputs in fresh)


def test_reading_observations_changes_nothing_but_credit() -> None:
    """The value model learns from action tokens alone, with them or without."""
    batch = conversations(make_bench())
    with_them, without = (credit_given(batch, observation_values=asked)[0] for asked in (True, False))
    assert not moved(with_them.value(), without.value())


def test_a_chain_without_observations_is_the_action_tokens() -> None:
    batch = pack([make_bench().conversation(number, "...AAA") for number in range(3)], 14)
    for microbatch in batch.microbatches:
        assert torch.equal(torch.cat(chain_positions(batch, microbatch)[1]), microbatch.state_positions)


# --- the value model a recipe wants --------------------------------------------------------------------------------------------------------


def test_unfrozen_attention_is_trained_and_only_there() -> None:
    frozen, trained = (bench_of(recipe(name, "live", **QUICK)) for name in ("sao", "sao-unfrozen-attention"))
    assert not any("self_attn" in name for name in frozen.value())
    before = trained.value()
    assert sum("self_attn" in name for name in before) == 2 * 4 * 2
    for number in range(2):
        trained.learner.update(conversations(trained, first_id=10 * number))
    after = trained.value()
    assert all(not torch.equal(before[name], after[name]) for name in before if "self_attn" in name)


@pytest.mark.parametrize(("saved", "loading"), [("sao", "sao-unfrozen-attention"), ("sao-unfrozen-attention", "sao")])
def test_a_value_model_of_the_other_kind_is_never_loaded(tmp_path: Path, saved: str, loading: str) -> None:
    bench_of(recipe(saved)).learner.save(tmp_path)
    theirs = "frozen" if saved == "sao" else "trained"
    for load in ("load", "load_value"):
        with pytest.raises(ConfigurationError, match=rf"attention {theirs}.*Set learning\.recipe back"):
            getattr(bench_of(recipe(loading)).learner, load)(tmp_path)
    bench_of(recipe(saved)).learner.load(tmp_path)


def test_a_state_of_before_attention_could_be_trained_is_one_of_frozen_attention(tmp_path: Path) -> None:
    bench_of(recipe()).learner.save(tmp_path)
    identity = tmp_path / "learner.json"
    identity.write_text(re.sub(r',\s*"frozen_value_attention": true', "", identity.read_text()))
    assert "frozen" not in identity.read_text()
    bench_of(recipe("grpo")).learner.load(tmp_path)
    with pytest.raises(ConfigurationError, match="attention frozen"):
        bench_of(recipe("sao-unfrozen-attention")).learner.load(tmp_path)


def test_a_longer_baseline_has_a_longer_past() -> None:
    bench = make_bench(baseline_window=300)
    one = bench.sample(1, tokens=1)
    for _ in range(3):
        metrics = bench.learner.update(pack([one] * 100, 1000)).metrics
    assert metrics["value/explained_variance_trajectories"] == 300


# --- the researcher's door -----------------------------------------------------------------------------------------------------------------


def test_the_recipe_in_the_documentation_is_registered_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RECIPES", dict(registry._RECIPES))
    page = (Path(__file__).parents[3] / "docs" / "algorithm.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page.split("### The researcher's door")[1], re.DOTALL)
    assert block.count("\n") < 40
    known = set(recipe_names())
    exec(compile(block, "docs/algorithm.md", "exec"), {})
    (name,) = set(recipe_names()) - known
    bench = bench_of(recipe(name, **QUICK))
    before = bench.policy()

    report = bench.learner.update(conversations(bench, shift=-0.2))

    assert report.problem is None
    assert report.metrics["policy/masked_fraction"] == 0.0
    assert report.metrics["policy/abs_log_ratio_unmasked"] == pytest.approx(0.2, abs=1e-4)
    assert moved(before, bench.policy())
