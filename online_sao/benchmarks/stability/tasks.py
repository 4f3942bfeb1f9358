"""Two verifiable tasks in a vocabulary of their own. Pure functions of their arguments; they know nothing of models, sampling or trajectories.

``sort``: one turn. Write six numbers in rising order; every step builds on the ones before.
``lookup``: two to five turns. Follow a chain of so many entries of a hidden table: ask for each (the tool's reply is the observation), then answer.

The teachers of the warm start know what an answer looks like and are careless: every fourth number or so is another one, and what follows
builds on it. Care is for the reward to teach: +1 for a right answer, −1 for anything else, at the very end.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from online_sao.benchmarks.tiny_policy.task import BEGIN, END, Instance, Task

EQUALS, ANSWER, ASK = range(3, 6)
_FIRST_NUMBER = 16
LARGEST = 31
VOCABULARY = _FIRST_NUMBER + LARGEST + 1
NUMBERS = range(_FIRST_NUMBER, VOCABULARY)

RIGHT, WRONG = 1.0, -1.0


def number(value: int) -> int:
    """The token of a number from 0 to LARGEST."""
    return _FIRST_NUMBER + value


class Sort:
    """BEGIN six different numbers EQUALS → the same in rising order, END."""

    name = "sort"
    vocabulary = VOCABULARY
    ordered = NUMBERS
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


class Lookup:
    """BEGIN hops key → ASK key END, answered by its entry in a hidden table; the entry is the next key; …; after so many hops ANSWER entry END.

    Asking a fifth time, or anything that is neither a question nor an answer, ends the episode as wrong.
    """

    name = "lookup"
    vocabulary = VOCABULARY
    ordered = NUMBERS
    max_turn_tokens = 5
    usual_tokens = 19
    MOST_HOPS = 4
    SLIP = 0.25
    """How often the teacher is one off, above or below; the turns after it build on that."""

    def instance(self, random: Random) -> Instance:
        hops, key = random.randint(1, self.MOST_HOPS), random.randint(0, LARGEST)
        return Instance((BEGIN, number(hops), number(key)), tuple(random.sample(range(LARGEST + 1), LARGEST + 1)))

    def react(self, instance: Instance, turns: Sequence[tuple[int, ...]]) -> tuple[int, ...] | float:
        turn = turns[-1]
        if turn == (ANSWER, self._solution(instance), END):
            return RIGHT
        if len(turn) != 3 or turn[0] != ASK or turn[1] < _FIRST_NUMBER or turn[2] != END or len(turns) > self.MOST_HOPS:
            return WRONG
        return (_entry(instance, turn[1]),)

    def _solution(self, instance: Instance) -> int:
        _, hops, found = instance.prompt
        for _ in range(hops - _FIRST_NUMBER):
            found = _entry(instance, found)
        return found

    def demonstrate(self, instance: Instance, random: Random) -> list[tuple[int, ...]]:
        _, hops, found = instance.prompt
        turns: list[tuple[int, ...]] = []
        for verb in (*[ASK] * (hops - _FIRST_NUMBER), ANSWER):
            written = number((found - _FIRST_NUMBER + random.choice((-1, 1))) % (LARGEST + 1)) if random.random() < self.SLIP else found
            turns.append((verb, written, END))
            found = _entry(instance, written)
        return turns


def _entry(instance: Instance, key: int) -> int:
    """Both are tokens."""
    return number(instance.hidden[key - _FIRST_NUMBER])


TASKS: dict[str, Task] = {task.name: task for task in (Sort(), Lookup())}
