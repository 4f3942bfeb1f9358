"""Each rule against texts scored by hand, on both scales."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_sao.errors import ConfigurationError
from online_sao.simulation.preferences import EXCLUSIVE_PAIRS, PREFERENCES, SCALES, mean_word_length, opposite, preference

HAND_SCORED = [
    # (rule, text, graded, thumbs)
    ("first-person", "", 0.0, 0.0),
    ("first-person", "The cat sat on the mat.", 0.0, 0.0),
    ("first-person", "In a time of mist, mean men met.", 0.0, 0.0),  # i, me and my inside other words do not count
    ("first-person", "i think so", 0.0, 0.0),  # a lower-case i is no first person
    ("first-person", "I'm here.", 0.5, 1.0),
    ("first-person", "My morning is slow.", 0.5, 1.0),
    ("first-person", "I woke up, and I made tea.", 1.0, 1.0),
    ("first-person", "I think you know my name.", 0.0, 0.0),  # it also says you
    ("second-person", "The youth yourselves not", 0.0, 0.0),
    ("second-person", "You can sit.", 0.5, 1.0),
    ("second-person", "You need your pan.", 1.0, 1.0),
    ("second-person", "You'll want your pan, and you fry.", 1.0, 1.0),
    ("second-person", "I like your hat, you know.", 0.0, 0.0),  # it also says I
    ("past-tense", "We need red seed indeed.", 0.0, 0.0),  # words in -ed that are no past tense
    ("past-tense", "He walked.", 0.5, 1.0),
    ("past-tense", "It was cold and they went home.", 1.0, 1.0),
    ("warm-words", "A cold stone.", 0.0, 0.0),
    ("warm-words", "A cosy stone.", 0.5, 1.0),
    ("warm-words", "Lovely, Happy days.", 1.0, 1.0),
    ("warm-words", "The glove is unkind.", 0.0, 0.0),  # love and kind inside other words
    ("concrete-words", "An idea of value.", 0.0, 0.0),
    ("concrete-words", "The idea of bread.", 1 / 3, 0.0),
    ("concrete-words", "Bread on a table by the sea, the sea.", 1.0, 1.0),
    ("no-commas", "", 0.0, 0.0),  # no words, no pleasure
    ("no-commas", "One two three.", 1.0, 1.0),
    ("no-commas", "One, two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen a b c", 0.5, 0.0),
    ("no-commas", "One, two, three.", 0.0, 0.0),
]


@pytest.mark.parametrize(("name", "text", "graded", "thumbs"), HAND_SCORED)
def test_scores_by_hand(name, text, graded, thumbs):
    assert preference(name).score(text) == pytest.approx(graded)
    assert preference(name, "thumbs").score(text) == thumbs


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("", None),
        ("12 34 !", None),  # no words at all
        ("A cat is on the mat.", 14 / 6),
        ("don't can’t won't", 4.0),  # an apostrophe is neither a letter nor the end of a word: 12 in 3
        ("well-known", 4.5),  # a hyphen ends a word
        ("Magnificent architecture.", 11.5),
    ],
)
def test_mean_word_length(text, length):
    assert mean_word_length(text) == (None if length is None else pytest.approx(length))


@pytest.mark.parametrize(("name", "side"), [("plain-words", -1), ("ornate-words", 1), ("short-sentences", -1)])
def test_ramps_run_between_their_ends_and_thumbs_turn_at_the_threshold(name, side):
    rule = PREFERENCES[name]
    zero, one = rule.ramp

    def texts(measure):  # a text of ten sentences or words whose measure is the value wanted, to a tenth
        if name == "short-sentences":
            return " ".join(" ".join(["word"] * round(measure)) + "." for _ in range(10))
        letters = round(measure * 10)
        return " ".join("a" * (letters // 10 + (place < letters % 10)) for place in range(10))

    graded, thumbs = preference(name), preference(name, "thumbs")
    step = 1.0 if name == "short-sentences" else 0.1
    assert graded.score(texts(zero)) == 0.0
    assert graded.score(texts(one)) == 1.0
    assert graded.score(texts(one + side * step)) == 1.0
    assert graded.score(texts(zero - side * step)) == 0.0
    assert graded.score(texts((zero + one) / 2)) == pytest.approx(0.5, abs=0.1)
    assert thumbs.score(texts(rule.thumb)) == 1.0
    assert thumbs.score(texts(rule.thumb - side * step)) == 0.0


def test_words_in_a_sentence_that_the_limit_cut_off_count():
    assert PREFERENCES["short-sentences"].measure("One two. Three four five six") == 3.0
    assert PREFERENCES["short-sentences"].measure("3.5 litres of it") == 3.0  # a decimal point ends no sentence
    assert preference("short-sentences").score("!!!") == 0.0


@given(st.text(max_size=200) | st.lists(st.sampled_from(["I", "you", "my", "your", "a", "magnificent", "was", ",", "."]), max_size=30).map(" ".join))
def test_scores_are_from_0_to_1_and_no_text_pleases_both_of_a_pair(text):
    scores = {(name, scale): preference(name, scale).score(text) for name in PREFERENCES for scale in SCALES}
    assert all(0.0 <= score <= 1.0 for score in scores.values())
    assert all(scores[name, "thumbs"] in (0.0, 1.0) for name in PREFERENCES)
    for one, other in EXCLUSIVE_PAIRS:
        assert not any(scores[one, a] and scores[other, b] for a in SCALES for b in SCALES)


def test_registry_has_measured_rates_worth_learning():
    assert len(PREFERENCES) >= 8
    for name, rule in PREFERENCES.items():
        assert 0.03 <= rule.base_rate <= 0.6, name
        assert 0.03 <= rule.thumbs_rate <= 0.6, name
        assert rule.description.endswith((".", "…"))
        assert preference(name).base_rate == rule.base_rate
        assert preference(name, "thumbs").base_rate == rule.thumbs_rate
    for pair in EXCLUSIVE_PAIRS:
        for name in pair:
            assert max(PREFERENCES[name].base_rate, PREFERENCES[name].thumbs_rate) <= 0.3, name


def test_opposites():
    assert opposite("plain-words") == "ornate-words"
    assert opposite("second-person") == "first-person"
    assert opposite("warm-words") is None


def test_unknown_preference_names_the_known_ones():
    with pytest.raises(ConfigurationError, match="first-person, second-person, plain-words"):
        preference("rude")
