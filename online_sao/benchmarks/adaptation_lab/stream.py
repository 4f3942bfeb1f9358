"""Who asks what, and what pleases them: the interactions of a run, in order. Pure; the same seed gives the same stream, whoever answers it.

uniform: everybody wants the same, and is as hard to please. mixed: what is wanted depends on who asks, how hard it is to please on the topic; the
prompt shows both. Wishes change twice: first to what goes together with the old, then to what excludes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from online_sao.benchmarks.adaptation_lab.answers import EASY, HARD, STYLES, USERS, USUAL, Scale, Style, Wish, ask, draw_items
from online_sao.benchmarks.tiny_policy.task import Instance

Population = Literal["uniform", "mixed"]
Names = Literal["named", "unnamed"]
POPULATIONS: tuple[Population, ...] = get_args(Population)
NAMES: tuple[Names, ...] = get_args(Names)

WISHES: dict[Population, tuple[tuple[Style, Style], ...]] = {
    "uniform": (("thanks", "thanks"), ("plain", "plain"), ("ornate", "ornate")),
    "mixed": (("thanks", "plain"), ("plain", "ornate"), ("ornate", "plain")),
}
"""Phase by phase, of either user. The last shift is to the opposite for everybody."""
TOPICS: dict[Population, tuple[int, ...]] = {"uniform": (USUAL,), "mixed": (EASY, HARD)}


@dataclass(frozen=True, slots=True)
class Phase:
    """``start``: its first interaction, from 0."""

    name: str
    wishes: tuple[Style, Style]
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
            Phase("/".join(dict.fromkeys(wishes)), wishes, number * self.phase_interactions, self.phase_interactions)
            for number, wishes in enumerate(WISHES[self.population])
        )

    def instance(self, interaction: int) -> Instance:
        random = Random(f"{self.population} {self.seed} {interaction}")
        user, topic = random.randrange(USERS), random.choice(TOPICS[self.population])
        wishes = WISHES[self.population][interaction // self.phase_interactions]
        return ask(user, topic, draw_items(random), self.named, Wish(wishes[user], self.scale))

    @property
    def named(self) -> Sequence[Style]:
        return STYLES if self.names == "named" else ()
