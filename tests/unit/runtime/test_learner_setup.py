"""Which recipes a service may learn by."""

from __future__ import annotations

import pytest

from online_sao.algorithm.recipes import recipe_names
from online_sao.config import LearningSettings, Settings
from online_sao.errors import ConfigurationError
from online_sao.runtime.learner_setup import learning_recipe


def settings(name: str, **numbers: object) -> Settings:
    return Settings(learning=LearningSettings(recipe=name, **numbers))


@pytest.mark.parametrize("name", recipe_names("live"))
def test_a_recipe_is_refused_where_it_would_learn_nothing_from_single_answers(name):
    if name.startswith("grpo"):
        with pytest.raises(ConfigurationError, match=f"{name} compares several answers"):
            learning_recipe(settings(name))
    else:
        assert learning_recipe(settings(name)).name == name


def test_settings_replace_single_numbers():
    assert learning_recipe(settings("sao", batch_size=3, epsilon_low=0.8)).batch_size == 3


def test_settings_that_make_no_recipe_are_told():
    with pytest.raises(ConfigurationError, match="make no recipe"):
        learning_recipe(settings("ema", preset="paper"))
