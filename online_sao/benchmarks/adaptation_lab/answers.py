"""The task: address who asks, then say six words, in whatever style one likes. Quality can be verified from the prompt; which style pleases is not
told. Pure functions of their arguments; knows nothing of models, recipes or shifts.

Prompt: BEGIN, three places for names of styles (or BLANK), who asks, the topic, six items, EQUALS.
Answer: the address of who asks, each item as a plain word or as an ornate one, perhaps THANKS, END.

The teacher of the warm start has no taste: how often its words are ornate is drawn for each answer, it thanks now and then, and where styles are
named in the prompt it more often takes one of those. It is careless, by topic: that makes some topics hard to please on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from online_sao.benchmarks.tiny_policy.task import BEGIN, END, Instance
from online_sao.experience.rewards import score_to_reward

Style = Literal["plain", "ornate", "thanks"]
"""Plain words; ornate words, which exclude plain ones; thanks at the end, which goes with either."""
Taste = Style | Literal["lenient", "harsh"]
"""A style that is wanted; or whoever scores the same whatever the style: lenient is content with any right answer, harsh with none."""
Scale = Literal["binary", "dense"]
STYLES: tuple[Style, ...] = get_args(Style)
TASTES: tuple[Taste, ...] = (*STYLES, "lenient", "harsh")
SCALES: tuple[Scale, ...] = get_args(Scale)

EQUALS, BLANK, THANKS = range(3, 6)
_NAMES, _USERS, _TOPICS, _ADDRESSES = 6, 9, 13, 16
_ITEMS, _PLAIN, _ORNATE = 20, 30, 40
ITEMS = 10
VOCABULARY = _ORNATE + ITEMS
WORDS = 6

IN_STYLE = (WORDS - 1) / WORDS
"""The part of the words from which an answer is in a style, where that is yes or no."""

USERS = 4
EASY, USUAL, HARD = range(3)
SLIP = (0.01, 0.03, 0.2)
"""By topic: how often the teacher says any word instead of the item's."""
NAMED_STYLE = 0.2
"""How often the teacher takes one of the styles that are named, if any is."""
THANKS_UNASKED = 0.25
THANKS_BESIDE = 0.1
"""Beside another style that was named."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What pleases who asks, and how finely they say so."""

    taste: Taste
    scale: Scale = "binary"

    @property
    def hidden(self) -> tuple[int, ...]:
        return TASTES.index(self.taste), SCALES.index(self.scale)


def wish_of(instance: Instance) -> Wish:
    taste, scale = instance.hidden
    return Wish(TASTES[taste], SCALES[scale])


def ask(user: int, topic: int, items: Sequence[int], named: Sequence[Style], wish: Wish) -> Instance:
    """A prompt of six ``items`` (each from 0 to ITEMS − 1); ``named``: the styles its first places name."""
    places = [_NAMES + index if style in named else BLANK for index, style in enumerate(STYLES)]
    prompt = (BEGIN, *places, _USERS + user, _TOPICS + topic, *(_ITEMS + item for item in items), EQUALS)
    return Instance(prompt, wish.hidden)


def user_of(instance: Instance) -> int:
    return instance.prompt[4] - _USERS


def topic_of(instance: Instance) -> int:
    return instance.prompt[5] - _TOPICS


def address(user: int) -> int:
    return _ADDRESSES + user


def word(item: int, style: Literal["plain", "ornate"]) -> int:
    """The token that says an item."""
    return (_PLAIN if style == "plain" else _ORNATE) + item


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a person finds in an answer, each from 0 to 1; the score is their product."""

    quality: float
    style: float

    @property
    def score(self) -> float:
        return self.quality * self.style


def judge(instance: Instance, answer: Sequence[int]) -> Judgement:
    """By the wish of the instance. Quality looks at the part of address and words that is right, whatever the style, out of as many places as there
    are, and is 0 without END; style at the part of the words that are in it, or whether there is thanks.

    ``binary``: quality is 1 where all is right, style where no more than one word is in another, else 0. ``dense``: each part grows to 1 over its
    last third.
    """
    wish = wish_of(instance)
    ended = bool(answer) and answer[-1] == END
    said = list(answer[:-1] if ended else answer)
    thanked = ended and bool(said) and said[-1] == THANKS
    if thanked:
        said.pop()
    quality = _right(instance, said) if ended else 0.0
    style = _pleasing(said, thanked, wish.taste)
    if wish.scale == "dense":
        return Judgement(_ramp(quality), _ramp(style))
    return Judgement(float(quality == 1.0), float(style >= IN_STYLE))


def _ramp(part: float) -> float:
    return max(0.0, 3.0 * part - 2.0)


def _right(instance: Instance, said: Sequence[int]) -> float:
    items = [token - _ITEMS for token in instance.prompt[6:-1]]
    expected = [{address(user_of(instance))}, *({_PLAIN + item, _ORNATE + item} for item in items)]
    right = sum(token in fitting for token, fitting in zip(said, expected, strict=False))
    return right / max(len(said), len(expected))


def _pleasing(said: Sequence[int], thanked: bool, taste: Taste) -> float:
    match taste:
        case "plain" | "ornate":
            return _form(said, taste)
        case "thanks":
            return float(thanked)
        case "lenient":
            return 1.0
        case "harsh":
            return 0.0


def _form(said: Sequence[int], style: Literal["plain", "ornate"]) -> float:
    words = [token for token in said if token >= _PLAIN]
    first = _PLAIN if style == "plain" else _ORNATE
    fitting = sum(first <= token < first + ITEMS for token in words)
    return fitting / len(words) if words else 0.0


class Answers:
    """The task as it is taught, with any wish and any names; the experiment asks with those of its own (stream.py)."""

    name = "answers"
    vocabulary = VOCABULARY
    ordered = range(0)
    max_turn_tokens = 10
    usual_tokens = WORDS + 3

    def instance(self, random: Random) -> Instance:
        named: list[Style] = []
        if random.random() < 0.5:
            named = [style for style in STYLES if random.random() < 2 / 3]
        return ask(random.randrange(USERS), random.choice((EASY, USUAL, HARD)), draw_items(random), named, Wish(random.choice(STYLES)))

    def react(self, instance: Instance, turns: Sequence[tuple[int, ...]]) -> float:
        """The reward of the one turn there is, by the map that takes scores of 0 to 1 to rewards of −1 to 1."""
        return score_to_reward(judge(instance, turns[-1]).score, 0.0, 1.0)

    def demonstrate(self, instance: Instance, random: Random) -> list[tuple[int, ...]]:
        named = [style for index, style in enumerate(STYLES) if instance.prompt[1 + index] != BLANK]
        style: Style | None = random.choice(named) if named and random.random() < NAMED_STYLE else None
        thanked = style == "thanks" or random.random() < (THANKS_UNASKED if style is None else THANKS_BESIDE)
        ornate = {"plain": 0.0, "ornate": 1.0}.get(style or "", random.random())
        slip = SLIP[topic_of(instance)]
        words = []
        for token in instance.prompt[6:-1]:
            item = random.randrange(ITEMS) if random.random() < slip else token - _ITEMS
            words.append(word(item, "ornate" if random.random() < ornate else "plain"))
        return [(address(user_of(instance)), *words, *([THANKS] if thanked else []), END)]


def draw_items(random: Random) -> list[int]:
    """Six different ones."""
    return random.sample(range(ITEMS), WORDS)


ANSWERS = Answers()
