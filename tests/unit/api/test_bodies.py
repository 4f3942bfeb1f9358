"""Strict JSON: what a body may hold, and what is said of one that may not."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict

from api.bodies import MAX_DEPTH, check_text, parse_json_object, validate
from online_sao.errors import InvalidRequestError


def test_ordinary_bodies_come_through_unchanged() -> None:
    raw = '{"a": [1, 2.5, -0.0, true, null, "ü \\u00fc 🙂 \\ud83d\\ude42"], "b": {"a": 1e300}}'.encode()
    assert parse_json_object(raw) == {"a": [1, 2.5, 0.0, True, None, "ü ü 🙂 🙂"], "b": {"a": 1e300}}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"[1]", "array"),
        (b"null", "null"),
        (b"true", "boolean"),
        (b"1.5", "number"),
        (b'"x"', "string"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": \xff}', "UTF-8"),
        (b"\xef\xbb\xbf{}", "JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e400}', "too large"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' appears twice"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"\\u0000": 1}', "NUL"),
        (b'{"a": ["\\udfff"]}', "surrogate"),
        (b'{"a": ' * 5000, "nested|valid"),
        (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested"),
    ],
)
def test_what_is_refused_says_why(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        parse_json_object(raw)


def test_the_deepest_that_is_allowed() -> None:
    depth = MAX_DEPTH - 1
    assert parse_json_object(b'{"a": ' + b"[" * depth + b"]" * depth + b"}")


def test_a_fault_names_its_place() -> None:
    class Inner(BaseModel):
        model_config = ConfigDict(strict=True)
        n: int

    class Outer(BaseModel):
        items: list[Inner]

    with pytest.raises(InvalidRequestError, match=r"'items\.1\.n'.*got '7'") as refused:
        validate(Outer, {"items": [{"n": 1}, {"n": "7"}]})
    assert refused.value.param == "items.1.n"
    check_text("fine")
