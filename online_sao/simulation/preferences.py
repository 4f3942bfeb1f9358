"""What simulated users like: pure rules from an answer's text to a score in [0, 1], by name. Know nothing of prompts, HTTP or models.

``base_rate`` is the mean score of the bundled model before any learning, measured on 80 samples or more at temperature 1 and 24 to 32 tokens. A
preference whose base rate is near 0 gives nothing to learn from; one near 1 leaves nothing to learn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from online_sao.errors import ConfigurationError

_FIRST_PERSON = re.compile(r"\b(?:I|[Mm]y|[Mm]e)\b")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
PLAIN_WORD_LETTERS = 4.1


def first_person(text: str) -> float:
    """Speaks in the first person: 0, 0.5 or 1 for none, one, or two and more of the words I, my, me (I'm, I've … count as I).

    Base rate 0.1 on the bundled model. The first token decides much of it, so it is learned within a few hundred scores.
    """
    return min(len(_FIRST_PERSON.findall(text)), 2) / 2


def plain_words(text: str) -> float:
    """Uses plain words: 1 where the mean word length is at most 4.1 letters, else 0. An answer without words scores 0.

    Base rate 0.12 on the bundled model. Spread over every word, so it is learned much more slowly than ``first_person``.
    """
    lengths = [sum(character.isalpha() for character in word) for word in _WORD.findall(text)]
    return float(bool(lengths) and sum(lengths) <= PLAIN_WORD_LETTERS * len(lengths))


@dataclass(frozen=True, slots=True)
class Preference:
    """A named rule. ``score`` maps an answer's text to [0, 1]."""

    name: str
    base_rate: float
    score: Callable[[str], float]

    @property
    def description(self) -> str:
        """First sentence of the rule's docstring."""
        return (self.score.__doc__ or "").split("\n\n")[0].strip()


PREFERENCES = {
    preference.name: preference for preference in (Preference("first-person", 0.1, first_person), Preference("plain-words", 0.12, plain_words))
}


def preference(name: str) -> Preference:
    """The preference called ``name``. Raises ConfigurationError naming the ones there are."""
    if name not in PREFERENCES:
        raise ConfigurationError(f"There is no preference {name!r}. Choose one of: {', '.join(PREFERENCES)}.")
    return PREFERENCES[name]
