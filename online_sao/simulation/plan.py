"""Who asks what, and what they want: the schedule of a run's phases, and the population that carries it. Pure; knows nothing of HTTP or models.

A run is a list of phases. In each, every user wants the same (``uniform``), or what is wanted depends on the user and the topic that the prompt
shows (``mixed``): the parent who asks for children wants one thing, the poet another. Everything follows from the seed and an interaction's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from online_sao.errors import ConfigurationError
from online_sao.simulation.preferences import Preference, Scale, opposite, preference
from online_sao.simulation.prompts import HELD_OUT, training_prompt

Population = Literal["uniform", "mixed"]
POPULATIONS: tuple[Population, ...] = get_args(Population)
DEFAULT_SCORES = 160
"""Interactions of a phase that names no number."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a prompt shows of who asks (``frame``, with {} for the question), or of its topic: questions that begin with one of ``topics``."""

    name: str
    frame: str = "{}"
    topics: tuple[str, ...] = ()


CONTEXTS = (
    Context("parent", "I am reading this to my little children. {}"),
    Context("poet", "I am a poet and I love language. {}"),
    Context("how-to", topics=("How ",)),
)
"""Of a mixed population, in the order in which a phase names preferences. A how-to question is the third's, whoever asks, if there are three."""
_EVERYBODY = Context("user")


@dataclass(frozen=True, slots=True)
class Phase:
    """``first`` to ``last``: indices of its interactions, from 0 over the whole run. ``preferences``: one, or one for each context."""

    number: int
    preferences: tuple[Preference, ...]
    first: int
    last: int

    @property
    def name(self) -> str:
        return "/".join(wanted.name for wanted in self.preferences)

    @property
    def description(self) -> str:
        if len(self.preferences) == 1:
            return self.preferences[0].description
        return " ".join(f"{context.name}: {wanted.description}" for context, wanted in zip(CONTEXTS, self.preferences, strict=False))

    def indices(self, newest: int | None = None) -> range:
        """Of all its interactions, or of the ``newest`` of them."""
        return range(self.first if newest is None else max(self.first, self.last + 1 - newest), self.last + 1)


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt as a user asks it, and what that user wants of the answer in each phase (``wanted[phase.number - 1]``)."""

    context: str
    prompt: str
    wanted: tuple[Preference, ...]

    def score(self, phase: Phase, text: str) -> float:
        return self.wanted[phase.number - 1].score(text)


class Plan:
    """Raises ConfigurationError naming what to change, where ``schedule`` cannot be read or does not fit the population."""

    def __init__(self, schedule: str, *, population: Population = "uniform", scale: Scale = "graded", seed: int = 0) -> None:
        if population not in POPULATIONS:
            raise ConfigurationError(f"There is no population {population!r}. Choose one of: {', '.join(POPULATIONS)}.")
        self.seed = seed
        self.phases = _phases(schedule, population, scale)

    def ask(self, index: int) -> Ask:
        """Of interaction ``index``. Contexts take turns."""
        return self._in_context(training_prompt(self.seed, index), index)

    def held_out(self, repeats: int) -> list[Ask]:
        """Every held-out prompt ``repeats`` times; contexts take turns."""
        return [self._in_context(prompt, number + turn) for turn in range(repeats) for number, prompt in enumerate(HELD_OUT)]

    def _in_context(self, prompt: str, turn: int) -> Ask:
        contexts = len(self.phases[0].preferences)
        if contexts == 1:
            return Ask(_EVERYBODY.name, prompt, tuple(phase.preferences[0] for phase in self.phases))
        by_topic = [place for place, context in enumerate(CONTEXTS[:contexts]) if context.topics and prompt.startswith(context.topics)]
        by_user = [place for place, context in enumerate(CONTEXTS[:contexts]) if not context.topics]
        place = by_topic[0] if by_topic else by_user[turn % len(by_user)]
        context = CONTEXTS[place]
        return Ask(context.name, context.frame.format(prompt), tuple(phase.preferences[place] for phase in self.phases))


def _phases(schedule: str, population: Population, scale: Scale) -> tuple[Phase, ...]:
    phases: list[Phase] = []
    first = 0
    for number, item in enumerate(schedule.split(","), start=1):
        names, _, count = item.strip().partition(":")
        if count and not (count.isdecimal() and int(count) > 0):
            raise ConfigurationError(f"--schedule: {item.strip()!r} must end in a number of interactions, as in first-person:{DEFAULT_SCORES}.")
        scores = int(count) if count else DEFAULT_SCORES
        phases.append(Phase(number, _preferences(names.strip().split("/"), population, scale), first, first + scores - 1))
        first += scores
    if len({len(phase.preferences) for phase in phases}) > 1:
        raise ConfigurationError("--schedule: every phase of a mixed population must name as many preferences.")
    return tuple(phases)


def _preferences(names: Sequence[str], population: Population, scale: Scale) -> tuple[Preference, ...]:
    wanted = tuple(preference(name, scale) for name in names)
    if population == "uniform":
        if len(wanted) > 1:
            raise ConfigurationError(f"--schedule: {'/'.join(names)} names several preferences: add --population mixed.")
        return wanted
    if len(wanted) == 1:
        other = opposite(names[0])
        if other is None:
            raise ConfigurationError(
                f"--population mixed: {names[0]} has no opposite. Name one preference for each of {', '.join(c.name for c in CONTEXTS[:2])} "
                f"(and, if you like, {CONTEXTS[2].name}), as in plain-words/ornate-words:{DEFAULT_SCORES}."
            )
        return wanted[0], preference(other, scale)
    if len(wanted) > len(CONTEXTS):
        raise ConfigurationError(f"--schedule: {'/'.join(names)} names more than {len(CONTEXTS)} preferences.")
    return wanted
