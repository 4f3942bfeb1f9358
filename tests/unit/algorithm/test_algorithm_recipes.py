"""Recipes: the numbers of the presets, overrides, and that other algorithms fit without the learner asking."""

import dataclasses
import math

import pytest
import torch

from online_sao.algorithm.advantages import skip_observation_gae
from online_sao.algorithm.anchoring import BaseDistance
from online_sao.algorithm.calibration import calibration_slope, recent_mean, reward_drop
from online_sao.algorithm.recipes import CreditInputs, Recipe, WeighInputs, recipe

F64 = torch.float64


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def numbers_of(chosen: Recipe) -> dict[str, object]:
    return {
        field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen) if field.name not in ("name", "preset", "weigh", "credit")
    }


OURS = {"gamma": 1.0, "lambda_alpha": 1.5, "gradient_clip": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.95, "weight_decay": 0.0, "max_policy_uses": 1} | {
    "calibration_half_life": 64.0,
    "baseline_half_life": 16.0,
    "baseline_window": 128,
    "anchor_reach": 1.0,
    "compares_groups": False,
    "uses_values": True,
    "policy_minibatches": 1,
    "sample_mean": False,
    "value_adapter": "mlp",
    "value_ridge": 0.2,
    "value_half_life": 64.0,
    "observation_values": False,
    "value_pretraining": True,
    "proximal_ratio_low": 0.0,
    "proximal_ratio_high": float("inf"),
    "sequence_kl_limit": 3e-3,
    "ema_decay": 0.95,
}


def test_numbers_of_the_paper_preset() -> None:
    assert numbers_of(recipe("sao", "paper")) == OURS | {
        "epsilon_low": 0.3,
        "epsilon_high": 5.0,
        "policy_learning_rate": 1e-6,
        "value_learning_rate": 5e-6,
        "batch_size": 128,
        "value_updates": 2,
        "value_warmup_updates": 10,
        "anchor_coefficient": 0.0,
        "anchor_gain": 0.0,
        "least_step": 1.0,
        "fresh_values": True,
        "max_policy_lag": 32,
    }


def test_numbers_of_the_live_preset_which_is_the_default() -> None:
    assert recipe() == recipe("sao", "live")
    assert numbers_of(recipe()) == OURS | {
        "epsilon_low": 0.3,
        "epsilon_high": 5.0,
        "policy_learning_rate": 1.5e-3,
        "value_learning_rate": 1e-3,
        "batch_size": 8,
        "value_updates": 2,
        "value_warmup_updates": 2,
        "anchor_coefficient": 0.1,
        "anchor_gain": 30.0,
        "least_step": 0.2,
        "fresh_values": False,
        "max_policy_lag": 32,
    }


def test_overrides_replace_and_none_means_the_presets_own() -> None:
    chosen = recipe("sao", "paper", batch_size=4, anchor_coefficient=0.0, policy_learning_rate=None)
    assert (chosen.batch_size, chosen.policy_learning_rate, chosen.preset) == (4, 1e-6, "paper")
    assert recipe(anchor_coefficient=0.0).anchor_coefficient == 0.0


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("epsilon_low", 0.0),
        ("batch_size", 0),
        ("value_updates", -1),
        ("gamma", 1.1),
        ("max_policy_uses", 0),
        ("policy_learning_rate", float("nan")),
        ("baseline_half_life", 0.0),
        ("baseline_window", 0),
        ("ema_decay", 1.0),
        ("policy_minibatches", 0),
        ("proximal_ratio_high", 0.0),
        ("sequence_kl_limit", 0.0),
    ],
)
def test_numbers_that_cannot_work_are_refused(field: str, number: float) -> None:
    with pytest.raises(ValueError, match=field):
        recipe(**{field: number})


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no recipe ema/paper; known: batch-mean/live, batch-mean/paper, ema/live, grpo/live"):
        recipe("ema", "paper")
    with pytest.raises(ValueError, match="no recipe grop/live"):
        recipe("grop")
    with pytest.raises(ValueError, match="sao/dead"):
        recipe("sao", "dead")
    with pytest.raises(TypeError, match="learning_speed"):
        recipe(learning_speed=1.0)


def test_token_weights_use_the_recipes_own_band_also_when_overridden() -> None:
    log_ratio = torch.log(t(0.6, 0.8, 3.5, 5.5))
    inputs = WeighInputs(log_ratio, t(0, 0, 0, 0), log_ratio, t(1, 1, 1, 1), torch.zeros(4, dtype=torch.long))
    reasoning = recipe("sao", "paper").token_weights(inputs)
    coding = recipe("sao", "paper", epsilon_low=0.8, epsilon_high=3.0).token_weights(inputs)
    assert reasoning.kept.tolist() == [False, True, True, True]
    assert coding.kept.tolist() == [True, True, True, False]


def test_advantages_adapt_lambda_to_each_trajectorys_own_action_tokens() -> None:
    """Lengths 1 and 3 (of 4 tokens): lambda 1/3 and 7/9. With values 0 and reward 1 at the end, A = (49/81, 7/9, 1)."""
    short = CreditInputs(rewards=t(0, 1), values=t(0, 0.25), loss_mask=torch.tensor([False, True]))
    long = CreditInputs(rewards=t(0, 0, 0, 1), values=t(5, 0, 0, 0), loss_mask=torch.tensor([False, True, True, True]))
    first, second = recipe("sao", "paper").advantages([short, long])
    assert first.tolist() == pytest.approx([0.0, 0.75], abs=1e-12)
    assert second.tolist() == pytest.approx([0.0, 49 / 81, 7 / 9, 1.0], abs=1e-12)


@pytest.mark.parametrize("preset", ["live", "paper"])
def test_advantages_are_not_normalised_even_when_all_are_alike(preset: str) -> None:
    inputs = CreditInputs(rewards=t(0.5), values=t(0.1), loss_mask=torch.tensor([True]))
    advantages = [a.item() for a in recipe("sao", preset).advantages([inputs, inputs, inputs])]
    # paper: against the value. live, whose critic has explained nothing yet: against the others, who earned the same.
    assert advantages == pytest.approx([0.4] * 3 if preset == "paper" else [0.0] * 3, abs=1e-12)


def test_live_uses_the_critic_as_far_as_it_explained_what_came_before() -> None:
    inputs = CreditInputs(rewards=t(0, 1), values=t(5, 9), loss_mask=torch.tensor([False, True]))
    useless = [(t(0.25), t(0)), (t(0.25), t(1)), (t(0.25), t(0))]
    assert recipe("sao", "live").advantages([inputs], useless)[0].tolist() == pytest.approx([0.0, 0.75])
    assert recipe("sao", "paper").advantages([inputs], useless)[0].tolist() == pytest.approx([0.0, -8.0])
    # A critic that has explained everything, to within the ridge: what is left over is 0, and V' = β · V.
    oracle = [(t(-1), t(-1)), (t(1), t(1))] * 20
    slope = calibration_slope(oracle, recipe().calibration_half_life)
    assert 0.98 < slope < 1
    level = recent_mean([(1 - slope) * sign for sign in (-1, 1) * 20], recipe().baseline_half_life)
    assert recipe("sao", "live").advantages([inputs], oracle)[0].tolist() == pytest.approx([0.0, 1 - (level + slope * 9)])


def test_the_level_is_that_of_the_others_in_the_batch_and_of_the_latest_before_it() -> None:
    """No critic yet: rewards 1, 0, 0.5 and one earlier return of −1, which weighs 2^(−1/16) against 1 for each of the two others."""
    batch = [CreditInputs(t(0, reward), t(0, 0), torch.tensor([False, True])) for reward in (1.0, 0.0, 0.5)]
    w = 0.5 ** (1 / 16)
    expected = [1 - (0.5 - w) / (2 + w), 0 - (1.5 - w) / (2 + w), 0.5 - (1 - w) / (2 + w)]
    assert [a[1].item() for a in recipe("sao", "live").advantages(batch, [(t(-1), t(0))])] == pytest.approx(expected)
    assert [a[1].item() for a in recipe("sao", "live").advantages(batch)] == pytest.approx([1 - 0.25, -0.75, 0.5 - 0.5])


def test_the_anchor_pulls_harder_after_a_loss_and_only_then() -> None:
    steady, lost = [0.5] * 100, [0.5] * 100 + [-1.0] * 16
    live = recipe("sao", "live", anchor_coefficient=0.2, anchor_gain=10.0, anchor_reach=0.6)
    away = BaseDistance(0.5, 0.5)
    assert live.anchor_strength(steady, away) == 0.2
    assert live.anchor_strength([], away) == 0.2
    drop = reward_drop(lost, live.baseline_half_life, live.calibration_half_life)
    assert drop > 0.2
    for kl_base in (0.3, 0.5):
        assert live.anchor_strength(lost, BaseDistance(kl_base, 0.5)) == pytest.approx(0.2 * (1 + 10 * drop))
    assert recipe("sao", "paper").anchor_strength(lost, away) == 0.0


def test_the_stronger_pull_fades_on_the_way_back_to_the_base() -> None:
    lost = [0.5] * 100 + [-1.0] * 16
    live = recipe("sao", "live", anchor_coefficient=0.2, anchor_gain=10.0, anchor_reach=0.6)
    boost = [live.anchor_strength(lost, BaseDistance(kl_base, 0.5)) - 0.2 for kl_base in (0.3, 0.15, 0.03, 0.0)]
    assert boost[1:] == pytest.approx([boost[0] / 4, boost[0] / 100, 0.0])


def test_a_step_is_as_long_as_what_is_left_to_gain() -> None:
    live = recipe("sao", "live", policy_learning_rate=1e-3, least_step=0.25)
    for earned, part in ((-1.0, 1.0), (0.0, 1.0), (0.4, 0.6), (0.75, 0.25), (1.0, 0.25)):
        assert live.step_size([earned] * 40) == pytest.approx(1e-3 * part)
    # Half-life 16: of thirty-two returns the later half weighs two thirds.
    assert live.step_size([0.0] * 16 + [0.6] * 16) == pytest.approx(1e-3 * (1 - 0.6 * 2 / 3))
    assert live.step_size([]) == 1e-3
    assert recipe("sao", "live", policy_learning_rate=1e-3, least_step=1.0).step_size([1.0] * 40) == 1e-3


def test_far_is_how_far_the_policy_has_lately_been() -> None:
    there = BaseDistance().after(0.4, 8)
    assert there == BaseDistance(0.4, 0.4)
    back = there.after(0.1, 64).after(0.1, 64)
    assert back == BaseDistance(0.1, pytest.approx(0.4 * 0.5**0.5))  # half of a half-life of 256 trajectories
    assert back.pull(1.0) == pytest.approx((0.1 / (0.4 * 0.5**0.5)) ** 2)
    assert there.after(0.9, 8).farthest == 0.9
    # The same way in other units: a task that takes a tenth of the nats is pulled as hard.
    small = BaseDistance().after(0.8, 8).after(0.2, 64), BaseDistance().after(0.08, 8).after(0.02, 64)
    assert small[0].pull(0.5) == pytest.approx(small[1].pull(0.5))


def test_what_has_only_begun_to_learn_is_not_far() -> None:
    assert BaseDistance().pull(0.5) == 0.0
    assert BaseDistance().after(0.005, 8).pull(0.5) == pytest.approx((0.005 / 0.025) ** 2)
    assert BaseDistance().after(-1e-9, 8) == BaseDistance(0.0, 0.0)
    assert BaseDistance(0.1, 0.4).after(math.nan, 8) == BaseDistance(0.1, 0.4)


def test_running_mean_is_a_constant_of_the_latest_returns_and_asks_no_value_model() -> None:
    rival = recipe("running-mean", "live", baseline_window=2)
    assert (rival.uses_values, rival.value_updates) == (False, 0)
    inputs = CreditInputs(rewards=t(0, 1), values=t(5, 9), loss_mask=torch.tensor([False, True]))
    past = [(t(-9), t(0)), (t(0.5, 0.5), t(0, 0)), (t(float("nan")), t(0))]
    assert rival.advantages([inputs], past)[0].tolist() == pytest.approx([0.0, 0.5])
    assert recipe("running-mean").advantages([inputs], past)[0].tolist() == pytest.approx([0.0, 1 - (-9 + 0.5) / 2])
    assert rival.advantages([inputs, dataclasses.replace(inputs, rewards=t(0, 0))])[1].tolist() == pytest.approx([0.0, -0.5])


def test_gamma_and_alpha_of_the_recipe_are_used() -> None:
    inputs = CreditInputs(rewards=t(0, 1), values=t(0.5, 0.25), loss_mask=torch.tensor([True, True]))
    chosen = recipe("sao", "paper", gamma=0.5, lambda_alpha=1.0)
    expected = skip_observation_gae(inputs.rewards, inputs.values, inputs.loss_mask, 0.5, 0.5)
    assert torch.equal(chosen.advantages([inputs])[0], expected)
