"""Each rule against hand-scored texts."""

import pytest

from online_sao.errors import ConfigurationError
from online_sao.simulation.preferences import PREFERENCES, first_person, plain_words, preference


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", 0.0),
        ("The cat sat on the mat.", 0.0),
        ("In a time of mist, mean men met.", 0.0),  # i, me and my inside other words do not count
        ("i think so", 0.0),  # a lower-case i is no first person
        ("I walk.", 0.5),
        ("I'm here.", 0.5),
        ("My morning is slow.", 0.5),
        ("Give me my tea.", 1.0),
        ("I woke up, and I made tea, and I drank it.", 1.0),
    ],
)
def test_first_person(text, score):
    assert first_person(text) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", 0.0),
        ("12 34 !", 0.0),  # no words at all
        ("A cat is on the mat.", 1.0),
        ("four five nine zero abcde", 0.0),  # 21 letters in 5 words: 4.2
        ("four five nine zero a bcdefg hi jkl mnop abcdefg", 1.0),  # 39 letters in 10 words: 3.9
        ("abcd abcd abcd abcd abcd abcd abcd abcd abcd abcde", 1.0),  # 41 in 10: exactly 4.1 still counts
        ("abcd abcd abcd abcd abcd abcd abcd abcd abcde abcde", 0.0),  # 42 in 10: 4.2
        ("don't can’t won't", 1.0),  # an apostrophe is neither a letter nor the end of a word: 12 in 3
        ("Magnificent architecture.", 0.0),
    ],
)
def test_plain_words(text, score):
    assert plain_words(text) == score


def test_registry_names_and_describes_every_rule():
    for name, rule in PREFERENCES.items():
        assert preference(name) is rule
        assert rule.description.endswith(".")
        assert 0 < rule.base_rate <= 0.3


def test_unknown_preference_names_the_known_ones():
    with pytest.raises(ConfigurationError, match="first-person, plain-words"):
        preference("rude")
