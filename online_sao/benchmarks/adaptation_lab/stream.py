"""Who asks what, and what pleases them: the interactions of a run, in order. Pure; the same seed gives the same stream, whoever answers it.

uniform: everybody wants the same, and is as hard to please. raters: half of those who ask want the same; of the others one is content with any right
answer, one with none, whatever is wanted. mixed: what is wanted depends on who asks, how hard it is to please on the topic. The prompt shows who asks
and the topic. Wishes change twice: first to what goes together with the old, then to what excludes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from online_sao.benchmarks.adaptation_lab.answers import EASY, HARD, STYLES, USUAL, Scale, Style, Taste, Wish, ask, draw_items
from online_sao.benchmarks.tiny_policy.task import Instance

Population = Literal["uniform", "raters", "mixed"]
Names = Literal["named", "unnamed"]
POPULATIONS: tuple[Population, ...] = get_args(Population)
NAMES: tuple[Names, ...] = get_args(Names)

WISHES: dict[Population, tuple[tuple[Taste, ...], ...]] = {
    "uniform": (("thanks", "thanks"), ("plain", "plain"), ("ornate", "ornate")),
    "raters": tuple((style, style, "lenient", "harsh") for style in ("thanks", "plain", "ornate")),
    "mixed": (("thanks", "plain"), ("plain", "ornate"), ("ornate", "plain")),
}
"""Phase by phase, of each user. The last shift is to the opposite for everybody who wants a style."""
TOPICS: dict[Population, tuple[int, ...]] = {"uniform": (USUAL,), "raters": (USUAL,), "mixed": (EASY, HARD)}


@dataclass(frozen=True, slots=True)
class Phase:
    """``start``: its first interaction, from 0. ``wishes``: what is wanted, of each who asks."""

    name: str
    wishes: tuple[str, ...]
    start: int
    interactions: int


@dataclass(frozen=True, slots=True)
class Stream:
    """``names``: whether every prompt names all styles there are, or none."""

    population: Population
    names: Names
    scale: Scale
    seed: int
    phase_interactions: int

    @property
    def phases(self) -> tuple[Phase, ...]:
        return tuple(
            Phase(
                "/".join(dict.fromkeys(wish for wish in wishes if wish in STYLES)), wishes, number * self.phase_interactions, self.phase_interactions
            )
            for number, wishes in enumerate(WISHES[self.population])
        )

    def instance(self, interaction: int) -> Instance:
        random = Random(f"{self.population} {self.seed} {interaction}")
        wishes = WISHES[self.population][interaction // self.phase_interactions]
        user, topic = random.randrange(len(wishes)), random.choice(TOPICS[self.population])
        return ask(user, topic, draw_items(random), self.named, Wish(wishes[user], self.scale))

    @property
    def named(self) -> Sequence[Style]:
        return STYLES if self.names == "named" else ()
