"""Places on the page, as addresses name them: what each tab understands, and what is wrong with an address that asks for something else.

Pure. What an address names and the server does not have (a version never evaluated) is the tab's to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from api.dashboard.interactions import FILTERS, SINCE
from online_sao.service.reasons import ReasonCode
from online_sao.types import InteractionStatus, ReceiptStatus, TrajectoryState

TITLES = {"overview": "Overview", "learning": "Learning", "versions": "Versions", "interactions": "Interactions", "playground": "Playground"}
_TEXT_LENGTH = 200
Check = Callable[[str], str | None]
"""A value → what is wrong with it, or None."""


def _number(value: str) -> str | None:
    return None if value.isascii() and value.isdecimal() and int(value[:20]) < 2**31 else "it must be a version's number, 0 or more"


def _one_of(values: type[StrEnum]) -> Check:
    return lambda value: None if value in list(values) else f"it must be one of {', '.join(values)}"


def _text(value: str) -> str | None:
    return None if len(value) <= _TEXT_LENGTH else f"it is longer than {_TEXT_LENGTH} characters"


def _anything(_: str) -> str | None:
    return None


_INTERACTIONS: dict[str, Check] = {
    **dict.fromkeys(FILTERS, _text),
    "version": _number,
    "into": _number,
    "since": lambda value: None if value in SINCE else f"it must be one of {', '.join(SINCE)}",
    "effect": lambda value: None if value == "none" else "it must be none",
    "status": _one_of(InteractionStatus),
    "receipt": _one_of(ReceiptStatus),
    "training": _one_of(TrajectoryState),
    "reason": _one_of(ReasonCode),
    "after": _number,
    "id": _anything,
}
KNOWN: Mapping[str, Mapping[str, Check]] = {
    "overview": {},
    "learning": {},
    "versions": {"left": _number, "right": _number, "before": _number},
    "interactions": _INTERACTIONS,
    "playground": {},
}


def understood(query: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(the place that the address names, with a tab that exists; what was ignored of the address, and why)."""
    asked = query.get("tab", "overview")
    tab = asked if asked in TITLES else "overview"
    place, ignored = {"tab": tab}, []
    if tab != asked:
        ignored.append(_ignored("tab", asked, f"there is no such tab; there are {', '.join(TITLES)}"))
    for name, value in query.items():
        if name == "tab" or value == "":
            continue
        check = KNOWN[tab].get(name)
        if check is None:
            known = ", ".join(KNOWN[tab])
            wrong: str | None = f"the tab {TITLES[tab]} knows {known}" if known else f"the tab {TITLES[tab]} takes nothing"
        else:
            wrong = check(value)
        if wrong is None:
            place[name] = value
        else:
            ignored.append(_ignored(name, value, wrong))
    return place, tuple(ignored)


def _ignored(name: str, value: str, why: str) -> str:
    return f"{name}={value[:60]} in the address was ignored: {why}."
