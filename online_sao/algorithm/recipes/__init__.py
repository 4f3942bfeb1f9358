"""Named recipes: which pieces make an update, and with which numbers. Owns every default of the algorithm; the learner only follows a recipe.

``definition.py`` says what a recipe is; one file a family has the pieces and numbers of each; ``register`` is the door for another
(docs/algorithm.md shows one whole).
"""

from online_sao.algorithm.recipes import ablations, baselines, grpo, ppo, sao
from online_sao.algorithm.recipes.ablations import every_token, step_average, step_last_token
from online_sao.algorithm.recipes.baselines import batch_mean_advantages, ema_advantages, running_mean_advantages, sequence_weights
from online_sao.algorithm.recipes.definition import AdvantageEstimator, CreditInputs, Preset, Recipe, TokenWeigher, WeighInputs
from online_sao.algorithm.recipes.grpo import group_advantages
from online_sao.algorithm.recipes.ppo import decoupled_weights, ppo_weights, tapered_weights
from online_sao.algorithm.recipes.registry import number_names, recipe, recipe_names, register
from online_sao.algorithm.recipes.sao import CriticEstimate, calibrated_critic_advantages, critic_advantages, dis_weights, skip_observation

__all__ = [
    "AdvantageEstimator",
    "CreditInputs",
    "CriticEstimate",
    "Preset",
    "Recipe",
    "TokenWeigher",
    "WeighInputs",
    "batch_mean_advantages",
    "calibrated_critic_advantages",
    "critic_advantages",
    "decoupled_weights",
    "dis_weights",
    "ema_advantages",
    "every_token",
    "group_advantages",
    "number_names",
    "ppo_weights",
    "recipe",
    "recipe_names",
    "register",
    "running_mean_advantages",
    "sequence_weights",
    "skip_observation",
    "step_average",
    "step_last_token",
    "tapered_weights",
]

for _family in (sao, ablations, ppo, grpo, baselines):
    for _recipe in _family.RECIPES:
        register(_recipe)
