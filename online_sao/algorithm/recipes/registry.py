"""Recipes by name and preset. Owns which there are; the built-in ones are registered by the package itself."""

from __future__ import annotations

import dataclasses
from typing import Any

from online_sao.algorithm.recipes.definition import Recipe

_RECIPES: dict[tuple[str, str], Recipe] = {}


def register(recipe: Recipe) -> Recipe:
    """Make ``recipe`` known under its name and preset, and return it. Raises ValueError if there is one of that name and preset already."""
    key = (recipe.name, recipe.preset)
    if key in _RECIPES:
        raise ValueError(f"there is a recipe {recipe.name}/{recipe.preset} already: choose another name")
    _RECIPES[key] = recipe
    return recipe


def recipe(name: str = "sao", preset: str = "live", **overrides: Any) -> Recipe:
    """The recipe ``name`` in the numbers of ``preset``. ``overrides`` replace single fields of Recipe; None means the preset's own.

    Raises ValueError for an unknown recipe or preset or a number that cannot work, TypeError for an unknown field.
    """
    if (name, preset) not in _RECIPES:
        known = ", ".join(f"{known_name}/{known_preset}" for known_name, known_preset in sorted(_RECIPES))
        raise ValueError(f"no recipe {name}/{preset}; known: {known}")
    return dataclasses.replace(_RECIPES[name, preset], **{field_name: value for field_name, value in overrides.items() if value is not None})


def recipe_names(preset: str | None = None) -> tuple[str, ...]:
    """The names of all recipes, sorted; with ``preset``, of those that have it."""
    return tuple(sorted({name for name, of in _RECIPES if preset in (None, of)}))


def number_names() -> dict[str, bool]:
    """The numbers of a recipe that may be replaced one by one → whether each is a whole number."""
    return {field.name: field.type == "int" for field in dataclasses.fields(Recipe) if field.type in ("int", "float", "bool")}
