"""Text that every database takes: without NUL, which PostgreSQL refuses, and halves of surrogate pairs, which have no UTF-8. Owns that rule."""

from __future__ import annotations

import re


def unstorable(text: str) -> str | None:
    """A character of ``text`` that not every database takes; None: there is none."""
    if "\0" in text:
        return "\0"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def storable(text: str) -> str:
    """``text`` with U+FFFD for each such character. Of text that nobody can be asked to mend: a model may sample NUL."""
    return text if unstorable(text) is None else re.sub("[\0\ud800-\udfff]", "\ufffd", text)
