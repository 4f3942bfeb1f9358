"""Two verifiable tasks in a vocabulary of their own. Pure functions of their arguments; they know nothing of models, sampling or trajectories.

``sort``: one turn. Write six numbers in rising order; every step builds on the ones before.
``search``: two to five turns. Find a hidden number: ask for a comparison (the tool's reply, the interval left, is the observation), then answer.

The teachers of the warm start know what an answer looks like and are not good at it: one slips while it sorts, the other asks anywhere in the
interval that is left, or in the whole again. What is missing, care and bisection, is for the reward to teach: +1 for a right answer, −1 for anything
else, at the very end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

PAD, BEGIN, END, EQUALS, ANSWER, ASK = range(6)
_FIRST_NUMBER = 16
LARGEST = 31
VOCABULARY = _FIRST_NUMBER + LARGEST + 1

RIGHT, WRONG = 1.0, -1.0


def number(value: int) -> int:
    """The token of a number from 0 to LARGEST."""
    return _FIRST_NUMBER + value


@dataclass(frozen=True, slots=True)
class Instance:
    """``hidden``: what the prompt does not tell, where there is such a thing."""

    prompt: tuple[int, ...]
    hidden: int = 0


class Task(Protocol):
    @property
    def name(self) -> str: ...

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


class Sort:
    """BEGIN six different numbers EQUALS → the same in rising order, END."""

    name = "sort"
    max_turn_tokens = 10
    usual_tokens = 7
    COUNT = 6
    SLIP = 0.25
    """How often the teacher writes any of the numbers that are left, instead of the smallest."""

    def instance(self, random: Random) -> Instance:
        return Instance((BEGIN, *(number(value) for value in random.sample(range(LARGEST + 1), self.COUNT)), EQUALS))

    def react(self, instance: Instance, turns: Sequence[tuple[int, ...]]) -> tuple[int, ...] | float:
        return RIGHT if turns[-1] == (*sorted(instance.prompt[1:-1]), END) else WRONG

    def demonstrate(self, instance: Instance, random: Random) -> list[tuple[int, ...]]:
        left, written = sorted(instance.prompt[1:-1]), []
        while left:
            written.append(left.pop(random.randrange(len(left)) if random.random() < self.SLIP else 0))
        return [(*written, END)]


class Search:
    """BEGIN low high → ASK x END, answered by the interval that is left, low high; …; ANSWER x END.

    Asking a fifth time, or anything that is neither a question nor an answer, ends the episode as wrong. Four questions are enough for an interval
    of 31 if each halves what is left.
    """

    name = "search"
    max_turn_tokens = 5
    usual_tokens = 23
    QUESTIONS = 4
    WIDTHS = (24, 31)
    """Smallest and largest number of candidates."""
    SLIP = 0.6
    """How often the teacher asks as if it had heard nothing yet."""

    def instance(self, random: Random) -> Instance:
        width = random.randint(*self.WIDTHS)
        low = random.randint(0, LARGEST + 1 - width)
        return Instance((BEGIN, number(low), number(low + width - 1)), random.randrange(low, low + width))

    def react(self, instance: Instance, turns: Sequence[tuple[int, ...]]) -> tuple[int, ...] | float:
        turn = turns[-1]
        if turn == (ANSWER, number(instance.hidden), END):
            return RIGHT
        if len(turn) != 3 or turn[0] != ASK or turn[1] < _FIRST_NUMBER or turn[2] != END or len(turns) > self.QUESTIONS:
            return WRONG
        return tuple(map(number, _interval_left(instance, [asked - _FIRST_NUMBER for _, asked, _ in turns])))

    def demonstrate(self, instance: Instance, random: Random) -> list[tuple[int, ...]]:
        first, last = _interval_left(instance, [])
        asked: list[int] = []
        low, high = first, last
        while low < high and len(asked) < self.QUESTIONS:
            asked.append(random.randint(first, last) if random.random() < self.SLIP else random.randint(low, high))
            low, high = _interval_left(instance, asked)
        return [*((ASK, number(value), END) for value in asked), (ANSWER, number(random.randint(low, high)), END)]


def _interval_left(instance: Instance, asked: Sequence[int]) -> tuple[int, int]:
    """Where the hidden number can still be after it was compared with those ``asked``; the prompt gives the interval of the beginning."""
    low, high = (token - _FIRST_NUMBER for token in instance.prompt[1:])
    for value in asked:
        if value <= instance.hidden:
            low = max(low, value + (value < instance.hidden))
        if value >= instance.hidden:
            high = min(high, value - (value > instance.hidden))
    return low, high


TASKS: dict[str, Task] = {task.name: task for task in (Sort(), Search())}
