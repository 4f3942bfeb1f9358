"""SAO minus one part each (arXiv 2607.07508, §4 and appendix A): what the part is worth. In both presets everything else is SAO's."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from torch import Tensor

from online_sao.algorithm.advantages import every_token_gae, step_gae
from online_sao.algorithm.recipes.definition import CreditInputs, Recipe
from online_sao.algorithm.recipes.sao import RECIPES as SAO
from online_sao.algorithm.recipes.sao import SAO_LIVE, SAO_PAPER, CriticEstimate, calibrated_critic_advantages, critic_advantages


def every_token(recipe: Recipe, trajectory: CreditInputs) -> Tensor:
    """GAE over observation tokens too."""
    return every_token_gae(trajectory.rewards, trajectory.values, trajectory.loss_mask, recipe.gamma, recipe.lambda_alpha)


def step_average(recipe: Recipe, trajectory: CreditInputs) -> Tensor:
    """GAE from step to step, a step's value being the average of its tokens'."""
    steps = trajectory.step_index
    return step_gae(trajectory.rewards, trajectory.values, trajectory.loss_mask, steps, recipe.gamma, recipe.lambda_alpha, "average")


def step_last_token(recipe: Recipe, trajectory: CreditInputs) -> Tensor:
    """GAE from step to step, a step's value being that of its last token: it has seen nearly the whole action, and biases the gradient."""
    steps = trajectory.step_index
    return step_gae(trajectory.rewards, trajectory.values, trajectory.loss_mask, steps, recipe.gamma, recipe.lambda_alpha, "last")


def _without(name: str, **changes: Any) -> tuple[Recipe, Recipe]:
    live, paper = (dataclasses.replace(sao, name=name, **changes) for sao in SAO)
    return live, paper


def _estimating(name: str, estimate: CriticEstimate, **changes: Any) -> tuple[Recipe, Recipe]:
    return (
        dataclasses.replace(SAO_LIVE, name=name, credit=partial(calibrated_critic_advantages, estimate=estimate), **changes),
        dataclasses.replace(SAO_PAPER, name=name, credit=partial(critic_advantages, estimate=estimate), **changes),
    )


RECIPES = (
    *_without("sao-k1", value_updates=1),
    *_without("sao-unfrozen-attention", value_adapter="all"),
    *_without("sao-frozen-trunk", value_adapter="none"),
    *_estimating("sao-no-skip-observation", every_token, observation_values=True),
    *_estimating("sao-step-average", step_average),
    *_estimating("sao-last-token", step_last_token),
    *_without("sao-no-value-pretraining", value_warmup_updates=0, value_pretraining=False),
)
