"""Schedules and populations: who asks what, and what they want, from seed and index alone."""

import pytest

from online_sao.errors import ConfigurationError
from online_sao.simulation.plan import CONTEXTS, DEFAULT_SCORES, Plan
from online_sao.simulation.prompts import HELD_OUT, training_prompt


def test_phases_follow_one_another():
    first, second, third = Plan("first-person:8, plain-words ,ornate-words:4").phases
    assert (first.first, first.last, second.first, second.last) == (0, 7, 8, 7 + DEFAULT_SCORES)
    assert (third.number, third.name) == (3, "ornate-words")
    assert list(third.indices(newest=3)) == [third.last - 2, third.last - 1, third.last]
    assert list(first.indices(newest=99)) == list(first.indices()) == list(range(8))


def test_in_a_uniform_population_everybody_wants_what_the_phase_says():
    plan = Plan("first-person:8,plain-words:8", scale="thumbs", seed=3)
    ask = plan.ask(9)
    assert (ask.context, ask.prompt) == ("user", training_prompt(3, 9))
    assert [(wanted.name, wanted.scale) for wanted in ask.wanted] == [("first-person", "thumbs"), ("plain-words", "thumbs")]
    assert ask.score(plan.phases[0], "I ruminate extensively.") == 1.0
    assert ask.score(plan.phases[1], "I ruminate extensively.") == 0.0


def test_in_a_mixed_population_the_prompt_decides_and_phases_swap_what_is_wanted():
    plan = Plan("plain-words/ornate-words/second-person:80,ornate-words/plain-words/second-person:80", population="mixed")
    parent, poet, _ = CONTEXTS
    asks = [plan.ask(index) for index in range(160)]
    assert {ask.context for ask in asks} == {"parent", "poet", "how-to"}
    for index, ask in enumerate(asks):
        question = training_prompt(0, index)
        if question.startswith("How "):
            assert ask.prompt == question
            assert [wanted.name for wanted in ask.wanted] == ["second-person"] * 2
        elif ask.context == "parent":
            assert ask.prompt == parent.frame.format(question)
            assert [wanted.name for wanted in ask.wanted] == ["plain-words", "ornate-words"]
        else:
            assert ask.prompt == poet.frame.format(question)
            assert [wanted.name for wanted in ask.wanted] == ["ornate-words", "plain-words"]
    assert "parent" in plan.phases[0].description
    assert plan.phases[1].name == "ornate-words/plain-words/second-person"


def test_one_preference_in_a_mixed_population_is_set_against_its_opposite():
    (phase,) = Plan("plain-words:8", population="mixed").phases
    assert phase.name == "plain-words/ornate-words"


def test_held_out_prompts_meet_every_context():
    asks = Plan("plain-words", population="mixed").held_out(2)
    assert len({(ask.context, ask.prompt) for ask in asks}) == len(asks) == 2 * len(HELD_OUT)
    assert [ask.prompt for ask in Plan("plain-words").held_out(1)] == list(HELD_OUT)


@pytest.mark.parametrize(
    ("schedule", "population", "message"),
    [
        ("rude:8", "uniform", "no preference 'rude'"),
        ("first-person:0", "uniform", "must end in a number"),
        ("first-person:many", "uniform", "must end in a number"),
        ("first-person:8,", "uniform", "no preference ''"),
        ("plain-words/ornate-words:8", "uniform", "add --population mixed"),
        ("warm-words:8", "mixed", "has no opposite"),
        ("plain-words/ornate-words/second-person/no-commas:8", "mixed", "more than 3"),
        ("plain-words:8,plain-words/ornate-words/second-person:8", "mixed", "as many preferences"),
        ("plain-words:8", "motley", "no population 'motley'"),
    ],
)
def test_schedules_that_cannot_be_are_refused_with_what_to_change(schedule, population, message):
    with pytest.raises(ConfigurationError, match=message):
        Plan(schedule, population=population)
