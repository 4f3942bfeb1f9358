"""What a tiny policy can be asked: the shape of a task, and the tokens that all of them share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

PAD, BEGIN, END = range(3)


@dataclass(frozen=True, slots=True)
class Instance:
    """``hidden``: what the prompt does not tell, where there is such a thing."""

    prompt: tuple[int, ...]
    hidden: tuple[int, ...] = ()


class Task(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def vocabulary(self) -> int:
        """Tokens there are, PAD, BEGIN and END among them."""
        ...

    @property
    def ordered(self) -> range:
        """Tokens that begin with embeddings in their order, as numbers do; an empty range where there are none."""
        ...

    @property
    def max_turn_tokens(self) -> int:
        """Tokens after which a turn is cut off."""
        ...

    @property
    def usual_tokens(self) -> int:
        """Tokens after the prompt, observations among them, where a teacher takes its longest way."""
        ...

    def instance(self, random: Random) -> Instance:
        """One question. All prompts of a task are equally long."""
        ...

    def react(self, instance: Instance, turns: Sequence[tuple[int, ...]]) -> tuple[int, ...] | float:
        """What follows the latest of the ``turns`` (each ends with END, or was cut off): the tokens of an observation, or the reward at the end."""
        ...

    def demonstrate(self, instance: Instance, random: Random) -> list[tuple[int, ...]]:
        """The turns of a teacher, each ended by END."""
        ...
