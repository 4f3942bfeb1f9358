"""Credit of SAO's ablations and rivals: by hand, and by what it must equal where the rival has nothing to do otherwise."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from online_sao.algorithm.advantages import (
    batch_centred,
    every_token_gae,
    group_normalised,
    length_adaptive_lambda,
    monte_carlo_returns,
    sample_mean,
    skip_observation_gae,
    step_gae,
    step_index,
)
from online_sao.algorithm.recipes import CreditInputs, Recipe, recipe, recipe_names, register, registry

F64 = torch.float64
NAN = math.nan


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def mask(turns: str) -> torch.Tensor:
    return torch.tensor([letter == "A" for letter in turns])


def outcome(reward: float, *, tokens: int = 2, group: int | None = None) -> CreditInputs:
    """A trajectory of one observation and ``tokens`` action tokens."""
    rewards = torch.zeros(tokens + 1, dtype=F64)
    rewards[-1] = reward
    return CreditInputs(rewards, torch.zeros(tokens + 1, dtype=F64), mask("." + "A" * tokens), None, group)


# --- GAE of other units ------------------------------------------------------------------------------------------------------------------


def test_gae_with_lambda_and_gamma_1_is_return_minus_value() -> None:
    rewards, values, actions = t(0, 0.25, 0, 0, -1), t(9, 0.5, -0.3, 9, 0.7), mask(".AA.A")
    expected = (monte_carlo_returns(rewards, actions) - values) * actions
    torch.testing.assert_close(skip_observation_gae(rewards, values, actions, 1.0, 1.0), expected)


def test_gae_over_every_token_by_hand() -> None:
    """.A.A. with alpha 1: a chain of 3 tokens, lambda 2/3, worked out backwards."""
    last = 1 - 0.4
    between = 0.4 - 0.9 + 2 / 3 * last
    first = 0.9 - 0.2 + 2 / 3 * between
    found = every_token_gae(t(5, 0, 7, 1, 5), t(5, 0.2, 0.9, 0.4, 5), mask(".A.A."), 1.0, 1.0)
    # A reward on an observation is none; it would be credited where it stood.
    assert every_token_gae(t(0, 0, 0, 1, 0), t(5, 0.2, 0.9, 0.4, 5), mask(".A.A."), 1.0, 1.0).tolist() == pytest.approx([0, first, 0, last, 0])
    assert found.tolist() == pytest.approx([0, first + 2 / 3 * 7, 0, last, 0])


def test_without_observations_every_token_is_skip_observation() -> None:
    rewards, values, actions = t(0, 0, 0.5, 1), t(9, 0.5, -0.3, 0.7), mask(".AAA")
    skipping = skip_observation_gae(rewards, values, actions, 0.9, length_adaptive_lambda(3, 1.5))
    torch.testing.assert_close(every_token_gae(rewards, values, actions, 0.9, 1.5), skipping)
    interrupted = skip_observation_gae(rewards, values, mask(".A.A"), 0.9, length_adaptive_lambda(2, 1.5))
    assert not torch.allclose(every_token_gae(rewards, values, mask(".A.A"), 0.9, 1.5), interrupted)


def test_a_trajectory_without_actions_has_no_chain() -> None:
    with pytest.raises(ValueError, match="needs an action token"):
        every_token_gae(t(0, 0), t(0, 0), mask(".."), 1.0, 1.5)


def test_steps_are_the_runs_of_the_mask() -> None:
    actions = mask("..AA.A...AAA.")
    assert step_index(actions)[actions].tolist() == [0, 0, 1, 2, 2, 2]
    assert step_index(mask("AA"))[mask("AA")].tolist() == [0, 0]


@pytest.mark.parametrize(("value", "values_of_steps"), [("average", (0.3, 0.7)), ("last", (0.5, 0.7))])
def test_step_gae_by_hand(value: Any, values_of_steps: tuple[float, float]) -> None:
    """Two steps of 2 and 1 tokens, alpha 1: lambda 1/2, gamma 0.9; 0.25 earned within the first step."""
    actions = mask(".AA.A")
    first, second = values_of_steps
    a1 = -1 - second
    a0 = 0.25 + 0.9 * second - first + 0.9 * 0.5 * a1
    found = step_gae(t(0, 0.25, 0, 9, -1), t(9, 0.1, 0.5, 9, 0.7), actions, step_index(actions), 0.9, 1.0, value)
    assert found.tolist() == pytest.approx([0, a0, a0, 0, a1], abs=1e-12)


@pytest.mark.parametrize("value", ["average", "last"])
def test_steps_of_one_token_are_tokens(value: Any) -> None:
    rewards, values, actions = t(0, 0.5, 0, 0, 0, 1), t(9, 0.5, 9, -0.3, 9, 0.7), mask(".A.A.A")
    tokens = skip_observation_gae(rewards, values, actions, 0.9, length_adaptive_lambda(3, 1.5))
    torch.testing.assert_close(step_gae(rewards, values, actions, step_index(actions), 0.9, 1.5, value), tokens)


def test_a_broken_value_makes_no_step_advantage() -> None:
    actions = mask(".AA.A")
    found = step_gae(t(0, 0, 0, 0, 1), t(0, NAN, 0, 0, 0), actions, step_index(actions), 1.0, 1.5, "average")
    assert found.tolist() == [0.0] * 5


@pytest.mark.parametrize("preset", ["live", "paper"])
def test_the_ablations_of_credit_are_sao_where_there_is_one_action_token_a_turn_and_nothing_between(preset: str) -> None:
    inputs = CreditInputs(t(0, 1), t(9, 0.25), mask(".A"))
    history = [(t(-1), t(-1)), (t(1), t(0.9))] * 10
    expected = recipe("sao", preset).advantages([inputs, inputs], history)
    for name in ("sao-no-skip-observation", "sao-step-average", "sao-last-token"):
        for mine, sao in zip(recipe(name, preset).advantages([inputs, inputs], history), expected, strict=True):
            torch.testing.assert_close(mine, sao)


@pytest.mark.parametrize("preset", ["live", "paper"])
def test_the_ablations_of_credit_are_not_sao_on_a_conversation(preset: str) -> None:
    inputs = CreditInputs(t(0, 0, 0.2, 0, 1), t(9, 0.25, -0.5, 0.6, 0.8), mask(".AA.A"))
    history = [(t(-1), t(-1)), (t(1), t(0.9))] * 10
    names = ("sao", "sao-no-skip-observation", "sao-step-average", "sao-last-token")
    found = [recipe(name, preset).advantages([inputs], history)[0] for name in names]
    for index, one in enumerate(found):
        assert not any(torch.allclose(one, other) for other in found[index + 1 :]), names[index]


def test_the_steps_that_were_given_win_over_the_runs_of_the_mask() -> None:
    """Action tokens alone: one run, though two turns. With their steps the advantages are those of the whole trajectory."""
    whole = CreditInputs(t(0, 0, 0.2, 0, 1), t(9, 0.25, -0.5, 9, 0.8), mask(".AA.A"))
    alone = CreditInputs(t(0, 0.2, 1), t(0.25, -0.5, 0.8), mask("AAA"), torch.tensor([0, 0, 1]))
    chosen = recipe("sao-step-average", "paper")
    torch.testing.assert_close(chosen.advantages([alone])[0], chosen.advantages([whole])[0][whole.loss_mask])


# --- groups and batches ------------------------------------------------------------------------------------------------------------------


def test_groups_are_normalised_each_by_itself() -> None:
    """(1, 0, −1): mean 0, sample deviation 1. (0.5, 0.1): mean 0.3, deviation 0.2·√2."""
    found = group_normalised([1.0, 0.5, 0.0, -1.0, 0.1], [7, 2, 7, 7, 2], epsilon=0.0)
    assert found == pytest.approx([1.0, 0.5**0.5, 0.0, -1.0, -(0.5**0.5)])
    assert sum(found) == pytest.approx(0.0, abs=1e-12)
    assert group_normalised([1.0, 0.0], [1, 1], epsilon=0.5)[0] == pytest.approx(0.5 / (0.5**0.5 + 0.5))


def test_who_is_alone_is_compared_with_nobody() -> None:
    assert group_normalised([1.0, 0.3, -1.0, NAN], [1, None, None, 1]) == [0.0, 0.0, 0.0, 0.0]
    assert [a.tolist() for a in recipe("grpo").advantages([outcome(1.0, group=3), outcome(-1.0)])] == [[0.0] * 3] * 2


def test_equal_outcomes_teach_nothing() -> None:
    assert group_normalised([0.3, 0.3, 0.3], [1, 1, 1]) == pytest.approx([0.0] * 3, abs=1e-9)


@pytest.mark.parametrize("name", ["grpo", "grpo-dis"])
def test_group_advantages_are_the_same_on_every_action_token(name: str) -> None:
    batch = [outcome(1.0, group=1), outcome(0.0, group=1, tokens=1), outcome(-1.0, group=1)]
    first, second, third = recipe(name, "paper").advantages(batch)
    assert first.tolist() == pytest.approx([0.0, 1.0, 1.0], abs=1e-5)
    assert second.tolist() == pytest.approx([0.0, 0.0])
    assert third.tolist() == pytest.approx([0.0, -1.0, -1.0], abs=1e-5)


def test_batch_mean_is_centred_and_knows_what_is_broken() -> None:
    assert batch_centred([1.0, 0.0, NAN, -0.4]) == pytest.approx([0.8, -0.2, 0.0, -0.6])
    assert batch_centred([NAN]) == [0.0]


def test_batch_mean_advantages_sum_to_zero_over_the_tokens_whatever_the_lengths() -> None:
    """Equal lengths: reward less mean. Unequal ones: each trajectory has the same part of the loss, so the tokens of a long one have less each."""
    equal = recipe("batch-mean").advantages([outcome(1.0), outcome(0.0), outcome(-0.4)])
    assert [a[1].item() for a in equal] == pytest.approx([0.8, -0.2, -0.6])
    assert sum(a.sum().item() for a in equal) == pytest.approx(0.0, abs=1e-12)
    unequal = recipe("batch-mean").advantages([outcome(1.0, tokens=3), outcome(0.0, tokens=1)])
    assert [a.tolist() for a in unequal] == [pytest.approx([0.0, 1 / 3, 1 / 3, 1 / 3]), pytest.approx([0.0, -1.0])]


def test_sample_mean_makes_a_token_mean_one_over_trajectories() -> None:
    masks = [mask(".AAA"), mask("A")]
    per_token = sample_mean([t(0, 3, 6, 9), t(5)], masks)
    assert sum(a.sum().item() for a in per_token) / 4 == pytest.approx(((3 + 6 + 9) / 3 + 5) / 2)


# --- baselines of the past ---------------------------------------------------------------------------------------------------------------


def test_ema_by_hand_over_four_returns() -> None:
    """Oldest first 1, −1, 0.5, 0.2 with decay 0.5: (0.2 + 0.5/2 − 1/4 + 1/8) / (1 + 1/2 + 1/4 + 1/8)."""
    past = [(t(1, 1), t(0, 0)), (t(-1), t(0)), (t(0.5), t(0)), (t(0.2), t(0))]
    baseline = (0.2 + 0.25 - 0.25 + 0.125) / 1.875
    assert recipe("ema", ema_decay=0.5).advantages([outcome(1.0, tokens=1)], past)[0].tolist() == pytest.approx([0.0, 1 - baseline])
    weights = [0.95**age for age in (3, 2, 1, 0)]
    slow = sum(w * g for w, g in zip(weights, (1, -1, 0.5, 0.2), strict=True)) / sum(weights)
    assert recipe("ema").advantages([outcome(1.0, tokens=1)], past)[0].tolist() == pytest.approx([0.0, 1 - slow])


def test_ema_of_a_long_past_is_the_textbook_recursion() -> None:
    returns = [math.sin(number) for number in range(256)]
    baseline = returns[0]
    for value in returns[1:]:
        baseline = 0.95 * baseline + 0.05 * value
    found = recipe("ema").advantages([outcome(1.0, tokens=1)], [(t(value), t(0)) for value in returns])
    assert found[0][1].item() == pytest.approx(1 - baseline, abs=1e-5)


def test_ema_without_a_past_is_the_mean_of_the_batch_nearly() -> None:
    """The batch stands in for the past, its last trajectory the latest."""
    found = recipe("ema", ema_decay=0.5).advantages([outcome(1.0, tokens=1), outcome(0.0, tokens=1)])
    assert [a[1].item() for a in found] == pytest.approx([1 - 1 / 3, -1 / 3])


# --- which there are ---------------------------------------------------------------------------------------------------------------------

WANTED = {
    *(
        "sao",
        "sao-k1",
        "sao-unfrozen-attention",
        "sao-frozen-trunk",
        "sao-no-skip-observation",
        "sao-step-average",
        "sao-last-token",
        "sao-no-value-pretraining",
    ),
    *("sao-tapered", "vapo", "icepop", "ppo-decoupled", "grpo", "grpo-dis", "running-mean", "ema", "batch-mean"),
}


def differences(name: str, preset: str) -> set[str]:
    one, sao = recipe(name, preset), recipe("sao", preset)
    return {field for field in Recipe.__dataclass_fields__ if getattr(one, field) != getattr(sao, field)} - {"name"}


def test_every_wanted_recipe_is_there_under_its_name() -> None:
    assert set(recipe_names()) == set(recipe_names("live")) == WANTED
    assert set(recipe_names("paper")) == WANTED - {"ema"}
    assert all(
        (recipe(name, preset).name, recipe(name, preset).preset) == (name, preset) for preset in ("live", "paper") for name in recipe_names(preset)
    )


@pytest.mark.parametrize("preset", ["live", "paper"])
def test_an_ablation_differs_from_sao_in_nothing_but_its_part(preset: str) -> None:
    assert differences("sao-k1", preset) == {"value_updates"}
    assert recipe("sao-k1", preset).value_updates == 1
    assert differences("sao-unfrozen-attention", preset) == differences("sao-frozen-trunk", preset) == {"value_adapter"}
    assert differences("sao-no-skip-observation", preset) == {"credit", "observation_values"}
    assert differences("sao-step-average", preset) == differences("sao-last-token", preset) == {"credit"}
    assert differences("sao-no-value-pretraining", preset) == {"value_warmup_updates", "value_pretraining"}
    assert differences("sao-tapered", preset) == {"weigh"}
    clip = {"weigh", "epsilon_low", "epsilon_high"}
    assert differences("vapo", preset) == clip
    assert differences("icepop", preset) == clip | {"proximal_ratio_low", "proximal_ratio_high", "policy_minibatches"}
    assert differences("ppo-decoupled", preset) == clip | {"proximal_ratio_high", "policy_minibatches"}
    no_critic = {"credit", "uses_values", "value_updates", "value_warmup_updates"}
    assert differences("running-mean", preset) == no_critic
    assert differences("grpo-dis", preset) == no_critic | {"compares_groups"}
    assert differences("grpo", preset) == no_critic | {"compares_groups"} | clip
    assert differences("batch-mean", preset) == no_critic | {"weigh", "sample_mean"}


def test_who_asks_no_critic_pretrains_none() -> None:
    assert {name for name in recipe_names() if not recipe(name).pretrains_values} == {
        *("sao-no-value-pretraining", "grpo", "grpo-dis", "running-mean", "ema", "batch-mean")
    }
    with pytest.raises(ValueError, match="observation_values needs uses_values"):
        recipe("ema", observation_values=True)


def test_a_registered_recipe_is_known_and_its_name_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RECIPES", dict(registry._RECIPES))
    mine = dataclasses.replace(recipe(), name="mine")
    assert register(mine) is mine
    assert recipe("mine") == mine
    assert "mine" in recipe_names("live")
    assert "mine" not in recipe_names("paper")
    with pytest.raises(ValueError, match="mine/live already"):
        register(mine)
