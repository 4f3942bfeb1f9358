"""What simulated users like: pure rules from an answer's text to a score in [0, 1], by name. Know nothing of prompts, HTTP or models.

Every rule measures one thing about a text (a count of words, a mean length) and turns it into a score on one of two scales: ``graded``, a person who
gives tenths or stars (a linear ramp), and ``thumbs``, one who says yes or no (a threshold). ``base_rate`` and ``thumbs_rate`` are the mean scores of
the bundled model before any learning: ``python -m online_sao.benchmarks.base_rates`` measures them (384 answers at temperature 1, 24 tokens). A
preference whose base rate is near 0 gives nothing to learn from; one near 1 leaves nothing to learn.

Of the pairs in EXCLUSIVE_PAIRS no text pleases both, on any scale: whoever has learned the one must unlearn it for the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from online_sao.errors import ConfigurationError

Scale = Literal["graded", "thumbs"]
SCALES: tuple[Scale, ...] = get_args(Scale)

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_FIRST_PERSON = re.compile(r"\b(?:I|[Mm]y|[Mm]e|[Mm]ine|[Mm]yself)\b")
_SECOND_PERSON = re.compile(r"\b(?:you|your|yours|yourself)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]+(?:\s|$)")
_PAST = re.compile(r"\b(?:was|were|had|did|went|came|made|took|saw|felt|got|found|began|knew|kept|said|told|woke|stood|sat|[a-z]{2,}[a-z]ed)\b")
_NOT_PAST = frozenset(("need", "feed", "seed", "speed", "breed", "indeed", "bed", "red", "hundred", "sacred", "naked"))
WARM_WORDS = frozenset(
    _WORD.findall(
        """love loved loves loving lovely warm warmth cosy cozy happy happiness joy joyful kind kindness gentle delight delightful delicious beautiful
    wonderful comfort comforting cheerful smile friend friends friendly family care caring sweet soft calm peaceful hug fun enjoy enjoyable enjoying
    glad pleasant"""
    )
)
CONCRETE_WORDS = frozenset(
    _WORD.findall(
        """water sun sky sea sand rain snow wind tree trees leaf leaves flower flowers grass garden river stone wood wooden fire light house room door
    window wall table chair bed kitchen street road bridge bread tea coffee milk egg eggs butter salt sugar fruit apple tomato tomatoes cheese soup
    rice cat cats dog dogs bird birds horse hand hands eye eyes hair foot feet shoe shoes shirt coat book books paper pen cup pot pan bowl glass
    knife bicycle bike wheel train bus car boat beach park market shop city village school child children mother red green blue white black yellow
    brown golden air smell sound"""
    )
)


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _ramp(value: float, zero: float, one: float) -> float:
    """0 at ``zero`` and on its far side, 1 at ``one`` and beyond, linear between. ``zero`` may be above ``one``."""
    return min(max((value - zero) / (one - zero), 0.0), 1.0)


def mean_word_length(text: str) -> float | None:
    """Letters a word, an apostrophe being neither a letter nor the end of a word; None of a text without words."""
    lengths = [sum(character.isalpha() for character in word) for word in _words(text)]
    return sum(lengths) / len(lengths) if lengths else None


def first_person(text: str) -> float:
    """How often I, my, me, mine or myself is said (I'm, I've … count), or 0 where the text also says you."""
    return 0.0 if _SECOND_PERSON.search(text) else float(len(_FIRST_PERSON.findall(text)))


def second_person(text: str) -> float:
    """How often you, your, yours or yourself is said, or 0 where the text also speaks in the first person."""
    return 0.0 if _FIRST_PERSON.search(text) else float(len(_SECOND_PERSON.findall(text)))


def past_words(text: str) -> float:
    """How many words are of the past: common irregular verbs, and words ending in -ed (participles among them)."""
    return float(sum(word not in _NOT_PAST for word in _PAST.findall(text)))


def warm_words(text: str) -> float:
    """How many words are warm: love, cosy, friend, delicious …"""
    return float(sum(word.lower() in WARM_WORDS for word in _words(text)))


def concrete_words(text: str) -> float:
    """How many words name a thing one can see, touch or smell: bread, window, sea …"""
    return float(sum(word.lower() in CONCRETE_WORDS for word in _words(text)))


def commas_per_word(text: str) -> float | None:
    """Commas a word; None of a text without words."""
    words = len(_words(text))
    return text.count(",") / words if words else None


def words_per_sentence(text: str) -> float | None:
    """Words a sentence; an unfinished last one counts as one. None of a text without words."""
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if _words(sentence)]
    return len(_words(text)) / len(sentences) if sentences else None


@dataclass(frozen=True, slots=True)
class Rule:
    """A measure and its two scales. ``ramp``: the measure's values scored 0 and 1 on the graded scale; ``thumb``: the value that is scored 1 on the
    other, and all beyond it. A text of which there is no measure scores 0."""

    description: str
    measure: Callable[[str], float | None]
    ramp: tuple[float, float]
    thumb: float
    base_rate: float
    thumbs_rate: float


@dataclass(frozen=True, slots=True)
class Preference:
    """A rule on one scale. ``base_rate``: mean score of the bundled model before any learning."""

    name: str
    scale: Scale
    rule: Rule

    @property
    def description(self) -> str:
        return self.rule.description

    @property
    def base_rate(self) -> float:
        return self.rule.base_rate if self.scale == "graded" else self.rule.thumbs_rate

    def score(self, text: str) -> float:
        """In [0, 1]. Depends on the text alone."""
        value = self.rule.measure(text)
        if value is None:
            return 0.0
        zero, one = self.rule.ramp
        if self.scale == "graded":
            return _ramp(value, zero, one)
        return float(value <= self.rule.thumb if one < zero else value >= self.rule.thumb)


PREFERENCES = {
    "first-person": Rule("Speaks of itself (I, my, me), and never says you.", first_person, (0, 2), 1, 0.13, 0.19),
    "second-person": Rule("Speaks to the reader (you, your), and never says I.", second_person, (0, 2), 1, 0.11, 0.18),
    "plain-words": Rule("Uses short words: mean length 3.8 letters or less at best.", mean_word_length, (4.6, 3.8), 4.1, 0.27, 0.21),
    "ornate-words": Rule("Uses long words: mean length 5.6 letters or more at best.", mean_word_length, (4.8, 5.6), 5.2, 0.17, 0.16),
    "past-tense": Rule("Tells of what was or has been done: was, went, words in -ed.", past_words, (0, 2), 1, 0.25, 0.38),
    "warm-words": Rule("Uses warm words: love, cosy, friend …", warm_words, (0, 2), 1, 0.13, 0.22),
    "concrete-words": Rule("Names things one can see, touch or smell.", concrete_words, (0, 3), 2, 0.19, 0.11),
    "no-commas": Rule("Does without commas.", commas_per_word, (0.1, 0), 0, 0.50, 0.31),
    "short-sentences": Rule("Writes short sentences: six words or fewer on average at best.", words_per_sentence, (14, 6), 9, 0.41, 0.29),
}
EXCLUSIVE_PAIRS = (("first-person", "second-person"), ("plain-words", "ornate-words"))


def preference(name: str, scale: Scale = "graded") -> Preference:
    """The preference called ``name``. Raises ConfigurationError naming the ones there are."""
    if name not in PREFERENCES:
        raise ConfigurationError(f"There is no preference {name!r}. Choose one of: {', '.join(PREFERENCES)}.")
    return Preference(name, scale, PREFERENCES[name])


def opposite(name: str) -> str | None:
    """The preference that no text can please together with ``name``, where there is one."""
    for one, other in EXCLUSIVE_PAIRS:
        if name in (one, other):
            return other if name == one else one
    return None
