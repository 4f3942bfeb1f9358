"""Whole characters only, stop strings across token boundaries, and how many tokens belong to the action."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.inference.decoding import StreamDecoder


class Bytes:
    """A detokeniser whose token k is the k-th chunk of bytes; None is a special token, which has no text."""

    def __init__(self, chunks):
        self.chunks = chunks

    def decode(self, token_ids):
        return b"".join(self.chunks[i] or b"" for i in token_ids).decode("utf-8", errors="replace")


def stream(chunks, stop=()):
    """(pieces given out, decoder) after all chunks or the stop."""
    decoder = StreamDecoder(Bytes(chunks), stop)
    pieces = []
    for token in range(len(chunks)):
        pieces.append(decoder.push(token))
        if decoder.stopped:
            return pieces, decoder
    pieces.append(decoder.finish())
    return pieces, decoder


def one_byte_tokens(text):
    return [bytes([byte]) for byte in text.encode()]


@pytest.mark.parametrize("text", ["plain", "🙂👩‍👩‍👧", "你好，世界", "e\u0301a\u0308 n\u0303", "a🙂b", "\u0e01\u0e33"])
def test_characters_are_never_split(text):
    pieces, decoder = stream(one_byte_tokens(text))
    assert "".join(pieces) == decoder.text == text
    assert all(len(piece) <= 1 for piece in pieces)
    assert "\ufffd" not in decoder.text


def test_text_comes_as_soon_as_it_is_whole():
    pieces, _ = stream([b"a" + "🙂".encode()[:2], "🙂".encode()[2:] + b"b", b"c"])
    assert pieces == ["a", "🙂b", "c", ""]


def test_special_tokens_have_no_text():
    pieces, _ = stream([b"a", None, b"b", None])
    assert pieces == ["a", "", "b", "", ""]


def test_bytes_that_never_become_a_character_are_left_out():
    """A token limit inside an emoji."""
    pieces, decoder = stream([b"a", b"\xf0\x9f"])
    assert pieces == ["a", "", ""]
    assert decoder.text == "a"
    assert decoder.finish() == ""


def test_an_invalid_byte_does_not_hold_up_what_follows():
    pieces, _ = stream([b"a", b"\xff", b"b"])
    assert pieces == ["a", "", "\ufffdb", ""]


def test_a_stop_string_across_tokens_is_cut_and_its_last_token_counts():
    pieces, decoder = stream([b"one", b" E", b"N", b"D two", b"never"], ["END"])
    assert pieces == ["one", " ", "", ""]
    assert decoder.stopped
    assert decoder.text == "one "


def test_what_looked_like_a_stop_is_given_once_it_is_none():
    pieces, decoder = stream([b"E", b"N", b"E", b"N", b"x"], ["END"])
    assert pieces == ["", "", "EN", "", "ENx", ""]
    assert not decoder.stopped


def test_held_text_is_given_at_the_end():
    pieces, decoder = stream([b"a", b"\n"], ["\n\nUser:"])
    assert pieces == ["a", "", "\n"]
    assert decoder.text == "a\n"


def test_several_stops_the_first_complete_one_ends_it():
    pieces, decoder = stream([b"ab", b"c", b"d"], ["abcd", "bc"])
    assert (decoder.text, len(pieces)) == ("a", 2)


def test_of_stops_completed_by_one_token_the_earliest_begins_the_cut():
    _, decoder = stream([b"x", b"<b><a>"], ["<a>", "<b>"])
    assert decoder.text == "x"


def test_a_stop_of_multibyte_characters_split_over_tokens():
    euro = "€".encode()
    pieces, decoder = stream([b"5 ", euro[:1], euro[1:], b"!"], ["€"])
    assert (decoder.text, len(pieces)) == ("5 ", 3)


def test_nothing_is_taken_after_the_stop():
    _, decoder = stream([b"a.", b"b"], ["."])
    assert decoder.finish() == ""
    with pytest.raises(ValueError, match="stopped"):
        decoder.push(1)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty stop"):
        StreamDecoder(Bytes([]), ["a", ""])


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet="ab€🙂\n", max_size=30),
    cuts=st.lists(st.integers(0, 120), max_size=30),
    stop=st.lists(st.text(alphabet="ab€🙂\n", min_size=1, max_size=4), max_size=3),
)
def test_any_cutting_gives_the_text_before_the_first_stop(text, cuts, stop):
    raw = text.encode()
    edges = [0, *sorted({cut for cut in cuts if cut < len(raw)} - {0}), len(raw)]
    chunks = [raw[a:b] for a, b in itertools.pairwise(edges)]
    # By the definition: the first token after which the whole characters so far contain a stop string.
    expected, tokens = text, len(chunks)
    for count in range(1, len(chunks) + 1):
        so_far = raw[: edges[count]].decode(errors="ignore")
        starts = [so_far.find(s) for s in stop if s in so_far]
        if starts:
            expected, tokens = so_far[: min(starts)], count
            break
    pieces, decoder = stream(chunks, stop)
    assert "".join(pieces) == decoder.text == expected
    assert len(pieces) - (not decoder.stopped) == tokens
