"""Words that the terminal, the dashboard and the settings have in common. Pure text; knows nothing of what is spoken of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean server.port?", with the blank before it; empty where nothing is near. Letter case does not count."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""


def age(seconds: float) -> str:
    """How long ago: 4 s, 3 min, 2 h, 5 d. Clocks that disagree by a little give 0 s, never a negative age."""
    seconds = max(0.0, seconds)
    for limit, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
