"""The adaptation lab's task: what is right and what pleases, by hand; wishes that change when they should; a teacher with something to learn."""

from random import Random

import pytest

from online_sao.benchmarks.adaptation_lab.answers import (
    ANSWERS,
    EASY,
    HARD,
    STYLES,
    TASTES,
    THANKS,
    USUAL,
    Wish,
    address,
    ask,
    judge,
    topic_of,
    user_of,
    word,
)
from online_sao.benchmarks.adaptation_lab.stream import NAMES, POPULATIONS, WISHES, Stream
from online_sao.benchmarks.tiny_policy.task import END, PAD

ITEMS = (3, 1, 4, 0, 5, 9)


def words(style):
    return [word(item, style) for item in ITEMS]


def found(answer, style, scale="dense", user=1):
    return judge(ask(user, USUAL, ITEMS, (), Wish(style, scale)), answer)


def test_an_answer_pleases_where_it_is_right_and_in_style():
    plain = (address(1), *words("plain"), END)
    assert found(plain, "plain", "binary").score == found(plain, "plain").score == 1
    assert (found(plain, "ornate").quality, found(plain, "ornate").style) == (1, 0)
    assert found(plain, "thanks").score == 0
    thanking = (*plain[:-1], THANKS, END)
    assert found(thanking, "thanks").score == found(thanking, "plain").score == 1
    assert found(thanking, "ornate").score == 0


def test_quality_counts_what_is_right_out_of_all_places():
    right = [address(1), *words("ornate")]
    wrong = [*right[:-1], word(2, "ornate")]
    assert found((*wrong, END), "ornate").quality == pytest.approx(4 / 7)
    assert found((*wrong, END), "ornate", "binary").score == 0
    assert found((address(0), *right[1:], END), "ornate").quality == pytest.approx(4 / 7)
    assert found((*right[:-1], END), "ornate").quality == pytest.approx(4 / 7)
    assert found((*right, word(9, "ornate"), END), "ornate").quality == pytest.approx(5 / 8)
    assert found((*right, THANKS, THANKS, END), "ornate").quality == pytest.approx(5 / 8)
    assert found((*right, THANKS), "thanks").score == found(right, "ornate").quality == found((END,), "plain").score == 0
    assert found((*right, PAD), "ornate").score == 0


def test_style_is_above_nothing_for_one_of_two_that_exclude_each_other_at_most():
    mixed = [address(1), *words("plain")[:5], *words("ornate")[5:], END]
    assert found(mixed, "plain").style == pytest.approx(1 / 2)
    assert found(mixed, "ornate").style == 0
    assert found(mixed, "plain", "binary").style == 1  # one word is forgiven
    assert found(mixed, "ornate", "binary").style == 0
    less = [address(1), *words("plain")[:4], *words("ornate")[4:], END]
    assert (found(less, "plain").style, found(less, "ornate").style) == (0, 0)
    assert found(less, "plain", "binary").style == 0


def test_scores_become_rewards_by_the_map_of_the_service():
    question = ask(1, USUAL, ITEMS, (), Wish("plain", "dense"))
    mixed = (address(1), *words("plain")[:5], *words("ornate")[5:], END)
    assert ANSWERS.react(question, [mixed]) == pytest.approx(0)
    assert ANSWERS.react(question, [(*mixed[:-1], PAD)]) == -1


def test_some_score_the_same_whatever_the_style():
    for style in ("plain", "ornate"):
        right = (address(2), *words(style), END)
        assert found(right, "lenient", "binary", user=2).score == found(right, "lenient", user=2).score == 1
        assert found(right, "harsh", "binary", user=2).score == found(right, "harsh", user=2).score == 0
        assert found(right[:-2], "lenient", user=2).score == 0
    stream = Stream("raters", "unnamed", "binary", seed=1, phase_interactions=400)
    assert {user_of(stream.instance(number)) for number in range(400)} == {0, 1, 2, 3}
    assert [phase.name for phase in stream.phases] == ["thanks", "plain", "ornate"]


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("scale", ["binary", "dense"])
def test_a_teacher_pleases_somebody_and_nobody_often(population, names, scale):
    for number in range(3):
        random, scores = Random(number), {}
        stream = Stream(population, names, scale, seed=1, phase_interactions=4000)
        for interaction in range(4000):
            question = stream.instance(4000 * number + interaction)
            (answer,) = ANSWERS.demonstrate(question, random)
            assert len(answer) <= ANSWERS.usual_tokens
            if TASTES[question.hidden[0]] in STYLES:
                scores.setdefault(topic_of(question), []).append(judge(question, answer).score)
        rates = {topic: sum(found) / len(found) for topic, found in scores.items()}
        assert set(rates) == ({EASY, HARD} if population == "mixed" else {USUAL})
        assert 0.05 < sum(rates.values()) / len(rates) <= 0.3
        if population == "mixed" and scale == "binary":
            assert rates[EASY] > 2 * rates[HARD]


def test_the_stream_is_the_same_whoever_answers_and_wishes_change_with_the_phase():
    stream = Stream("mixed", "unnamed", "binary", seed=3, phase_interactions=8)
    assert [stream.instance(number) for number in range(24)] == [stream.instance(number) for number in range(24)]
    named = Stream("mixed", "named", "binary", seed=3, phase_interactions=8)
    for number in range(24):
        one, other = stream.instance(number), named.instance(number)
        assert one.prompt[4:] == other.prompt[4:]
        assert one.prompt[1:4] != other.prompt[1:4]
        user = one.prompt[4] - 9
        assert TASTES[one.hidden[0]] == WISHES["mixed"][number // 8][user]
    assert [phase.start for phase in stream.phases] == [0, 8, 16]
    assert stream.instance(0) != Stream("mixed", "unnamed", "binary", seed=4, phase_interactions=8).instance(0)


def test_the_last_shift_is_to_the_opposite_for_everybody():
    for before, after in (wishes[1:] for wishes in WISHES.values()):
        assert all({one, other} == {"plain", "ornate"} for one, other in zip(before, after, strict=True) if one != other)
        assert any(one != other for one, other in zip(before, after, strict=True))
