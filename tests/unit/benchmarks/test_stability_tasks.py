"""The benchmark's tasks: what is right is verified, what a tool replies is true, and the teachers are worth learning from but not good."""

from random import Random

import pytest

from online_sao.benchmarks.stability.tasks import ANSWER, ASK, EQUALS, TASKS, VOCABULARY, number
from online_sao.benchmarks.tiny_policy.task import BEGIN, END, PAD, Instance

SORT, LOOKUP = TASKS["sort"], TASKS["lookup"]


def test_numbers_are_sorted_whole_and_once_or_they_are_not():
    question = Instance((BEGIN, *map(number, (7, 8, 31, 1, 2, 0)), EQUALS))
    right = (*map(number, (0, 1, 2, 7, 8, 31)), END)
    assert SORT.react(question, [right]) == 1.0
    assert SORT.react(question, [right[:-1]]) == -1.0  # cut off
    assert SORT.react(question, [(right[1], right[0], *right[2:])]) == -1.0
    assert SORT.react(question, [right[1:]]) == -1.0
    assert SORT.react(question, [(number(0), *right)]) == -1.0


TABLE = (3, 0, 4, 2, 1, *range(5, 32))
"""0 → 3 → 2 → 4 → 1 → 0."""


def test_the_tool_replies_with_the_entry_of_the_key_asked_for():
    question = Instance((BEGIN, number(3), number(0)), TABLE)
    turns = []
    for asked, entry in ((0, 3), (3, 2), (31, 31), (2, 4)):
        turns.append((ASK, number(asked), END))
        assert LOOKUP.react(question, turns) == (number(entry),)
    assert LOOKUP.react(question, [*turns, (ANSWER, number(4), END)]) == 1.0
    assert LOOKUP.react(question, [(ANSWER, number(2), END)]) == -1.0


@pytest.mark.parametrize("turn", [(ASK, END), (ASK, PAD, END), (ASK, number(3), number(4), END), (ASK, number(3), PAD), (number(3),) * 5])
def test_what_is_neither_question_nor_answer_ends_the_lookup_as_wrong(turn):
    assert LOOKUP.react(Instance((BEGIN, number(1), number(9)), TABLE), [turn]) == -1.0


def test_a_fifth_question_ends_the_lookup_as_wrong_and_a_fifth_turn_may_answer():
    question = Instance((BEGIN, number(4), number(0)), TABLE)
    asked = [(ASK, number(key), END) for key in (0, 3, 2, 4, 1)]
    assert LOOKUP.react(question, asked[:4]) == (number(1),)
    assert LOOKUP.react(question, asked) == -1.0
    assert LOOKUP.react(question, [*asked[:4], (ANSWER, number(1), END)]) == 1.0


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_teachers_leave_something_to_learn(task):
    random, right, lengths, longest, turns_taken = Random(1), 0, set(), 0, set()
    for _ in range(1500):
        question = task.instance(random)
        turns = task.demonstrate(question, random)
        turns_taken.add(len(turns))
        follows = [task.react(question, turns[: place + 1]) for place in range(len(turns))]
        assert all(isinstance(reply, tuple) for reply in follows[:-1])
        assert isinstance(follows[-1], float)
        assert all(turn[-1] == END and len(turn) <= task.max_turn_tokens for turn in turns)
        assert all(0 < token < VOCABULARY for turn in (question.prompt, *turns) for token in turn)
        right += follows[-1] > 0
        lengths.add(len(question.prompt))
        longest = max(longest, sum(map(len, turns)) + sum(map(len, follows[:-1])))
    assert 0.3 < right / 1500 < 0.5
    assert len(lengths) == 1
    assert longest == task.usual_tokens
    assert turns_taken == ({1} if task is SORT else {2, 3, 4, 5})
