"""What a run is the run of, checked before anything runs. Owns how a recipe asked for by name gets its numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, cast

from online_sao.algorithm.recipes import Preset, Recipe, number_names, recipe
from online_sao.benchmarks.adaptation_lab import kto, oracle
from online_sao.benchmarks.adaptation_lab.answers import Scale
from online_sao.benchmarks.adaptation_lab.stream import Names, Population, Stream
from online_sao.benchmarks.tiny_policy.lab import recipe_numbers
from online_sao.benchmarks.tiny_policy.warm_start import CooledWarmStart, WarmStart

LIVE = recipe("sao", "live")
SETTINGS = ("population", "names", "scale")
"""Options in which runs are only compared where they are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """``recipe``: NAME or NAME/PRESET (live, where none is named), with numbers of its own as :NUMBER=VALUE after it; or kto, or oracle. Learning
    rates and batch are the same for all recipes; ``anchor`` None: the recipe's own. ``lag``: updates that what answers is behind. Those of ``kto_…``
    concern that baseline alone."""

    recipe: str
    population: Population
    seed: int
    names: Names = "unnamed"
    scale: Scale = "binary"
    phase_interactions: int = 400
    lag: int = 1
    batch_size: int = LIVE.batch_size
    policy_learning_rate: float = LIVE.policy_learning_rate
    value_learning_rate: float = LIVE.value_learning_rate
    anchor: float | None = None
    kto_every: int = 64
    kto_epochs: int = 1
    kto_learning_rate: float = 1e-4
    lora_rank: int = 16
    warm_start: WarmStart = field(default_factory=lambda: CooledWarmStart(goal=1.0, max_steps=400))

    def __post_init__(self) -> None:
        for name in ("phase_interactions", "batch_size", "kto_every", "kto_epochs", "lora_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("phase_interactions", "kto_every"):
            if getattr(self, name) % self.batch_size:
                raise ValueError(f"{name} must be a multiple of the batch of {self.batch_size}, not {getattr(self, name)}")
        if self.is_kto:
            return
        chosen = self.build_recipe()
        if chosen.compares_groups:
            raise ValueError(f"{self.recipe} compares answers to the same prompt; here, as in live traffic, every prompt is answered once")
        if not 0 <= self.lag <= chosen.max_policy_lag:
            raise ValueError(f"a lag of {self.lag} is outside 0 to {chosen.max_policy_lag}: older trajectories expire (max_policy_lag)")

    @property
    def is_kto(self) -> bool:
        return recipe_name(self.recipe) == kto.NAME

    @property
    def is_oracle(self) -> bool:
        return recipe_name(self.recipe) == oracle.NAME

    @property
    def title(self) -> str:
        return f"{self.recipe}, {self.population}, {self.names}, {self.scale}, seed {self.seed}"

    @property
    def stream(self) -> Stream:
        return Stream(self.population, self.names, self.scale, self.seed, self.phase_interactions)

    def build_recipe(self) -> Recipe:
        """Raises ValueError if there is none of that name and preset, or no such number."""
        named, *changes = self.recipe.split(":")
        name, _, preset = named.partition("/")
        chosen = recipe(
            oracle.BASELINE if name == oracle.NAME else name,
            cast(Preset, preset or "live"),
            policy_learning_rate=self.policy_learning_rate,
            value_learning_rate=self.value_learning_rate,
            batch_size=self.batch_size,
            anchor_coefficient=self.anchor,
        )
        return replace(chosen, **dict(_change(chosen, change) for change in changes))

    def numbers(self) -> dict[str, Any]:
        """The recipe's; of KTO there are none but the options."""
        return {"name": kto.NAME} if self.is_kto else recipe_numbers(self.build_recipe())


def recipe_name(text: str) -> str:
    """Without the preset and the numbers of its own."""
    return re.split("[/:]", text)[0]


def _change(chosen: Recipe, text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name not in number_names() or name == "batch_size":  # the batch is the stream's
        raise ValueError(
            f"{text!r} changes no number of a recipe; :NUMBER=VALUE may name {', '.join(sorted(number_names().keys() - {'batch_size'}))}"
        )
    kind = type(getattr(chosen, name))
    try:
        return name, kind(int(value)) if kind in (bool, int) else float(value)
    except ValueError:
        raise ValueError(f"{name} is {'a whole number' if kind in (bool, int) else 'a number'}, not {value!r}") from None
