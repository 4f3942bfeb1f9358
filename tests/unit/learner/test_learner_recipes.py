"""One learner follows every recipe: each makes real updates, and what a recipe's numbers and flags ask of the learner is what it does."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tiny_learner import Bench, bench_of, make_bench, moved

from online_sao.algorithm.recipes import CreditInputs, Recipe, critic_advantages, recipe, recipe_names, registry
from online_sao.config.learning import RecipeName
from online_sao.errors import ConfigurationError
from online_sao.experience.batching import TrainBatch, pack
from online_sao.learner.layout import chain_positions

QUICK = {"policy_learning_rate": 1e-2, "value_learning_rate": 1e-2, "anchor_coefficient": 0.0}


@pytest.mark.parametrize(("name", "preset"), [(name, preset) for preset in ("live", "paper") for name in recipe_names(preset)])
def test_every_recipe_makes_updates_that_move_the_policy(name: str, preset: str) -> None:
    bench = bench_of(recipe(name, preset, **QUICK))
    for number in range(2):
        before, value = bench.policy(), bench.value()
        report = bench.learner.update(bench.conversations(first_id=10 * number))
        assert report.problem is None
        assert all(math.isfinite(value) for value in report.metrics.values())
        assert report.metrics["policy/step_applied"] == 1.0
        assert report.metrics["policy/advantage_abs_mean"] > 0
        assert len(report.masked_fraction) == 6
        assert moved(before, bench.policy())
        assert moved(value, bench.value()) == bench.learner.recipe.uses_values


def test_the_settings_name_every_recipe() -> None:
    assert sorted(get_args(RecipeName)) == list(recipe_names())


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
    batch = make_bench().conversations(max_tokens=20)
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
        alone = bench.learner.value.values(ids, torch.arange(len(ids)), torch.zeros_like(ids), chain - 1).detach()
        assert float(alone.abs().max()) > 0
        torch.testing.assert_close(inputs.values, alone, atol=1e-5, rtol=0)
        assert inputs.loss_mask.tolist() == [trajectory.loss_mask[position] for position in chain]
        assert inputs.rewards.tolist() == [trajectory.rewards[position] for position in chain]
        assert inputs.step_index[inputs.loss_mask].tolist() == credit_given(batch)[1][batch.trajectories.index(trajectory)].step_index.tolist()


def test_early_values_at_observations_are_from_before_the_value_updates() -> None:
    batch = make_bench().conversations()
    _, early = credit_given(batch, observation_values=True, fresh_values=False)
    assert all(float(inputs.values.abs().max()) == 0.0 for inputs in early)
    _, fresh = credit_given(batch, observation_values=True)
    assert all(float(inputs.values.abs().max()) > 0.0 for inputs in fresh)


def test_reading_observations_changes_nothing_but_credit() -> None:
    """The value model learns from action tokens alone, with them or without."""
    batch = make_bench().conversations()
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
        trained.learner.update(trained.conversations(first_id=10 * number))
    after = trained.value()
    assert all(not torch.equal(before[name], after[name]) for name in before if "self_attn" in name)


KINDS = {"sao": "attention frozen", "sao-unfrozen-attention": "attention trained", "sao-frozen-trunk": "linear in the base's states"}


@pytest.mark.parametrize(("saved", "loading"), list(itertools.permutations(KINDS, 2)))
def test_a_value_model_of_another_kind_is_never_loaded(tmp_path: Path, saved: str, loading: str) -> None:
    bench_of(recipe(saved)).learner.save(tmp_path)
    for load in ("load", "load_value"):
        with pytest.raises(ConfigurationError, match=rf"{KINDS[saved]}.*{KINDS[loading]}.*Set learning\.recipe back.*{KINDS[saved]}"):
            getattr(bench_of(recipe(loading)).learner, load)(tmp_path)
    bench_of(recipe(saved)).learner.load(tmp_path)


@pytest.mark.parametrize(
    ("kept", "name"), [({}, "sao"), ({"frozen_value_attention": True}, "sao"), ({"frozen_value_attention": False}, "sao-unfrozen-attention")]
)
def test_a_state_as_it_was_kept_before_is_of_the_kind_it_always_was(tmp_path: Path, kept: dict[str, bool], name: str) -> None:
    bench_of(recipe(name)).learner.save(tmp_path)
    file = tmp_path / "learner.json"
    identity = json.loads(file.read_text())
    del identity["value_adapter"]
    file.write_text(json.dumps(identity | kept))
    bench_of(recipe(name)).learner.load(tmp_path)
    with pytest.raises(ConfigurationError, match=KINDS[name]):
        bench_of(recipe("sao-frozen-trunk")).learner.load(tmp_path)


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

    report = bench.learner.update(bench.conversations(shift=-0.2))

    assert report.problem is None
    assert report.metrics["policy/masked_fraction"] == 0.0
    assert report.metrics["policy/abs_log_ratio_unmasked"] == pytest.approx(0.2, abs=1e-4)
    assert moved(before, bench.policy())
