"""From settings to a learner. Owns which setting becomes which number of it; knows no database."""

from __future__ import annotations

import dataclasses
import os

from online_sao.algorithm.recipes import Recipe, recipe
from online_sao.config import LearningSettings, Settings
from online_sao.errors import ConfigurationError
from online_sao.learner.learner import Learner
from online_sao.learner.ranks import Ranks
from online_sao.learner.threads import Threads
from online_sao.models.catalog import base_digest, obtain
from online_sao.publishing.base_identity import BaseIdentity, require_same_base

_NUMBERS = frozenset(LearningSettings.model_fields) - {"recipe", "preset"}
"""Settings that replace the field of the same name in a recipe."""


def learning_recipe(settings: Settings) -> Recipe:
    """The recipe in the numbers of the preset, with what the settings say otherwise. Raises ConfigurationError where they make none."""
    learning = settings.learning
    overrides = {field.name: getattr(learning, field.name) for field in dataclasses.fields(Recipe) if field.name in _NUMBERS}
    try:
        chosen = recipe(learning.recipe, learning.preset, **overrides)
    except ValueError as error:
        raise ConfigurationError(f"The learning settings make no recipe: {error}. See docs/configuration.md.") from error
    if chosen.compares_groups:
        raise ConfigurationError(
            f"The recipe {chosen.name} compares several answers to one prompt, and live traffic gives one: nothing would be learned. Set "
            "learning.recipe to one that needs no groups, for example sao or batch-mean; `online-sao bench stability` compares it with those."
        )
    return chosen


def open_learner(settings: Settings, ranks: Ranks | None = None) -> Learner:
    """The learner of a data folder. Raises ConfigurationError where that folder belongs to another model."""
    policy = settings.policy
    digest = base_digest(obtain(policy.model, policy.cache_dir))
    require_same_base(settings.storage.data_dir, BaseIdentity(policy.model, digest, policy.lora_rank, policy.lora_alpha))
    return build_learner(settings, ranks)


def build_learner(settings: Settings, ranks: Ranks | None = None) -> Learner:
    """The same, of no data folder: what a rank needs that only computes."""
    policy = settings.policy
    return Learner.open(
        obtain(policy.model, policy.cache_dir),
        learning_recipe(settings),
        lora_rank=policy.lora_rank,
        lora_alpha=policy.lora_alpha,
        seed=settings.learning.seed,
        ranks=ranks or alone(settings),
        device=settings.learning.device,
    )


def alone(settings: Settings) -> Ranks:
    """How one process makes an update with nobody else: its cores take microbatches side by side. A GPU is kept busy by one."""
    threads = settings.learning.threads or os.cpu_count() or 1
    return Threads(threads) if settings.learning.device == "cpu" and threads > 1 else Ranks()
