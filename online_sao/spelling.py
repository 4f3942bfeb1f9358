"""What a misspelt name was probably meant to be. Owns the wording of the hint; knows nothing of what is named."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean server.port?", with the blank before it; empty where nothing is near. Letter case does not count."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""
