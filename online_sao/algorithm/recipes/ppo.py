"""Rivals of DIS: the same critic and credit as SAO, other ways to treat a token's ratio. Owns their weighers and numbers: the PPO family, and TOPR's
taper."""

from __future__ import annotations

import dataclasses
from typing import Any

from online_sao.algorithm.importance import TokenWeights, decoupled_ppo, ppo_clip, tapered
from online_sao.algorithm.recipes.definition import Recipe, WeighInputs
from online_sao.algorithm.recipes.sao import SAO_LIVE, SAO_PAPER

CLIP_HIGHER: dict[str, Any] = {"epsilon_low": 0.2, "epsilon_high": 0.28}
"""The clip of DAPO (arXiv 2503.14476) and VAPO (arXiv 2504.05118)."""


def ppo_weights(recipe: Recipe, inputs: WeighInputs) -> TokenWeights:
    """PPO's clip on current / behavior."""
    return ppo_clip(inputs.current_logprobs, inputs.behavior_logprobs, inputs.advantages, recipe.epsilon_low, recipe.epsilon_high)


def decoupled_weights(recipe: Recipe, inputs: WeighInputs) -> TokenWeights:
    """PPO's clip on current / proximal, times proximal / behavior where that is within the recipe's bounds."""
    return decoupled_ppo(
        inputs.current_logprobs,
        inputs.proximal_logprobs,
        inputs.behavior_logprobs,
        inputs.advantages,
        recipe.epsilon_low,
        recipe.epsilon_high,
        recipe.proximal_ratio_low,
        recipe.proximal_ratio_high,
    )


def tapered_weights(recipe: Recipe, inputs: WeighInputs) -> TokenWeights:
    """TOPR's taper with the recipe's bounds: what has become unlikely is left out only where that was wanted."""
    return tapered(inputs.current_logprobs, inputs.behavior_logprobs, inputs.advantages, recipe.epsilon_low, recipe.epsilon_high)


_ICEPOP: dict[str, Any] = {"name": "icepop", "weigh": decoupled_weights, "proximal_ratio_low": 0.5, "proximal_ratio_high": 5.0, **CLIP_HIGHER}
"""IcePop's published region [0.5, 5] (arXiv 2510.18855)."""
_DECOUPLED: dict[str, Any] = {
    "name": "ppo-decoupled",
    "weigh": decoupled_weights,
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "proximal_ratio_high": 5.0,
}
"""AReaL (arXiv 2505.24298): a clip of 0.2; its implementation leaves out tokens whose proximal / behavior is above a cap, 5 by default."""

RECIPES = (
    *(dataclasses.replace(sao, name="sao-tapered", weigh=tapered_weights) for sao in (SAO_LIVE, SAO_PAPER)),
    *(dataclasses.replace(sao, name="vapo", weigh=ppo_weights, **CLIP_HIGHER) for sao in (SAO_LIVE, SAO_PAPER)),
    # Several steps an update, without which proximal and current are one: 4 as AReaL takes them, 2 of the few microbatches of a live batch.
    *(
        dataclasses.replace(sao, **rival, policy_minibatches=steps)
        for rival in (_ICEPOP, _DECOUPLED)
        for sao, steps in ((SAO_LIVE, 2), (SAO_PAPER, 4))
    ),
)
