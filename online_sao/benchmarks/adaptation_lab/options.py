"""What a run is the run of, checked before anything runs. Owns how a recipe asked for by name gets its numbers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from online_sao.algorithm.recipes import Preset, Recipe, number_names, recipe
from online_sao.benchmarks.adaptation_lab import kto, oracle
from online_sao.benchmarks.adaptation_lab.answers import ANSWERS, Scale
from online_sao.benchmarks.adaptation_lab.bundled import BundledWorld, find, phases_of
from online_sao.benchmarks.adaptation_lab.stream import Names, Phase, Population, Stream
from online_sao.benchmarks.adaptation_lab.tiny import TinyWorld
from online_sao.benchmarks.adaptation_lab.world import World
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.lab import recipe_numbers
from online_sao.benchmarks.tiny_policy.warm_start import CooledWarmStart, WarmStart
from online_sao.errors import ConfigurationError
from online_sao.simulation import plan, preferences

LIVE = recipe("sao", "live")
SCALES: dict[Scale, preferences.Scale] = {"binary": "thumbs", "dense": "graded"}
"""What the simulation's users call them."""
SCHEDULE = "first-person:96,plain-words:112,ornate-words:256"
"""The comparison's of the service (docs/adaptation.md)."""
SETTINGS = ("model", "population", "names", "scale")
"""Options in which runs are only compared where they are equal."""
TINY = "tiny"
"""The model of runs whose options name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabOptions(ABC):
    """What both worlds have. ``recipe``: NAME or NAME/PRESET (live, where none is named), with numbers of its own as :NUMBER=VALUE after it; or
    oracle, or kto. Learning rates and batch are the same for all recipes; ``anchor`` None: the recipe's own. ``lag``: updates that what answers is
    behind."""

    recipe: str
    population: Population
    seed: int
    names: Names = "unnamed"
    scale: Scale = "binary"
    lag: int = 1
    batch_size: int = LIVE.batch_size
    policy_learning_rate: float = LIVE.policy_learning_rate
    value_learning_rate: float = LIVE.value_learning_rate
    anchor: float | None = None
    lora_rank: int = 16

    def __post_init__(self) -> None:
        for name in ("batch_size", "lora_rank"):
            _at_least_one(self, name)
        if self.is_kto:
            return
        chosen = self.build_recipe()
        if chosen.compares_groups:
            raise ValueError(f"{self.recipe} compares answers to the same prompt; here, as in live traffic, every prompt is answered once")
        if not 0 <= self.lag <= chosen.max_policy_lag:
            raise ValueError(f"a lag of {self.lag} is outside 0 to {chosen.max_policy_lag}: older trajectories expire (max_policy_lag)")

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]: ...

    @property
    @abstractmethod
    def branches(self) -> bool:
        """Whether the last phase is also played with the neutral score."""

    @abstractmethod
    def world(self, base: Path) -> World:
        """``base``: what ``prepare`` found."""

    @abstractmethod
    def prepare(self, cache: Path, progress: Callable[[int, int, float], None]) -> tuple[Path, dict[str, Any]]:
        """The folder of the base model, made where it is not there yet, and what is said of it, its ``parameters`` among that. ``progress``: as of
        ``warm_start.obtain``."""

    @property
    def is_kto(self) -> bool:
        return recipe_name(self.recipe) == kto.NAME

    @property
    def is_oracle(self) -> bool:
        return recipe_name(self.recipe) == oracle.NAME

    @property
    def title(self) -> str:
        return ", ".join((self.recipe, *setting_of(asdict(self)), f"seed {self.seed}"))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(LabOptions):
    """Of a run of the tiny transformer. Those of ``kto_…`` concern that baseline alone."""

    phase_interactions: int = 400
    kto_every: int = 64
    kto_epochs: int = 1
    kto_learning_rate: float = 1e-4
    warm_start: WarmStart = field(default_factory=lambda: CooledWarmStart(goal=1.0, max_steps=400))

    def __post_init__(self) -> None:
        LabOptions.__post_init__(self)
        for name in ("phase_interactions", "kto_every", "kto_epochs"):
            _at_least_one(self, name)
        for name in ("phase_interactions", "kto_every"):
            if getattr(self, name) % self.batch_size:
                raise ValueError(f"{name} must be a multiple of the batch of {self.batch_size}, not {getattr(self, name)}")

    @property
    def stream(self) -> Stream:
        return Stream(self.population, self.names, self.scale, self.seed, self.phase_interactions)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.stream.phases

    @property
    def branches(self) -> bool:
        return not self.is_kto

    def world(self, base: Path) -> World:
        return TinyWorld(self.stream, base, self.warm_start)

    def prepare(self, cache: Path, progress: Callable[[int, int, float], None]) -> tuple[Path, dict[str, Any]]:
        return warm_start.obtain(ANSWERS, self.seed, self.warm_start, cache, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledOptions(LabOptions):
    """Of a run of a chat model. ``model``: as ``policy.model`` of the service names it. ``schedule``: as the simulation's. ``anchor_only``: whether
    that control is played too."""

    model: str = "bundled"
    schedule: str = SCHEDULE
    max_tokens: int = 24
    anchor_only: bool = True

    def __post_init__(self) -> None:
        LabOptions.__post_init__(self)
        _at_least_one(self, "max_tokens")
        if self.population == "raters":
            raise ValueError(f"the population raters is the tiny model's alone; a chat model has {' and '.join(plan.POPULATIONS)}")
        if self.is_kto:
            raise ValueError("the recipe kto is run with the tiny model alone")
        if len(self.phases) < 2:
            raise ValueError("--schedule: name two preferences at least, one after the other: what is measured is what happens at a shift")
        for phase in self.phases:
            if phase.interactions % self.batch_size:
                raise ValueError(f"--schedule: {phase.name}:{phase.interactions} must be a multiple of the batch of {self.batch_size}")

    @property
    def plan(self) -> plan.Plan:
        """Raises ValueError, saying what to change, where the schedule does not fit."""
        assert self.population != "raters"
        try:
            return plan.Plan(self.schedule, population=self.population, scale=SCALES[self.scale], seed=self.seed)
        except ConfigurationError as error:
            raise ValueError(error.message) from None

    @property
    def phases(self) -> tuple[Phase, ...]:
        return phases_of(self.plan)

    @property
    def branches(self) -> bool:
        return self.anchor_only

    def world(self, base: Path) -> World:
        return BundledWorld(base, self.plan, named=self.names == "named", max_tokens=self.max_tokens)

    def prepare(self, cache: Path, progress: Callable[[int, int, float], None]) -> tuple[Path, dict[str, Any]]:
        return find(self.model)


def setting_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """In words; the tiny model goes without saying."""
    return tuple(str(options[name]) for name in SETTINGS if options.get(name, TINY) != TINY)


def _at_least_one(options: LabOptions, name: str) -> None:
    if getattr(options, name) < 1:
        raise ValueError(f"{name} must be at least 1, not {getattr(options, name)}")


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
