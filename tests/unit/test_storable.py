"""Which characters not every database takes, and what is kept in their place."""

import pytest

from online_sao.storable import storable, unstorable


@pytest.mark.parametrize("text", ["", "plain", "é — 漢字 😀", "\x01\x7f\uffff\ufffd\ue000\ud7ff"])
def test_text_that_every_database_takes_stays_as_it_is(text: str) -> None:
    assert unstorable(text) is None
    assert storable(text) == text


@pytest.mark.parametrize("code", [0, 0xD800, 0xDBFF, 0xDC00, 0xDFFF])
def test_what_a_database_refuses_is_replaced(code: int) -> None:
    character = chr(code)
    text = f"é{character}{character}!"
    assert unstorable(text) == character
    assert storable(text) == "é\ufffd\ufffd!"
