"""Numbers and names as a person reads them. Pure text; knows nothing of pages or of where numbers come from."""

from __future__ import annotations

from dataclasses import dataclass

from online_sao.types import TrajectoryState
from online_sao.wording import age as age

MISSING = "–"


def duration(seconds: float) -> str:
    """How long something took: 0.4 s, 12 s, 3 min, 2 h."""
    seconds = max(0.0, seconds)
    return f"{seconds:.1f} s" if seconds < 9.95 else age(seconds)


def reason(text: str | None) -> str:
    """A stored reason as words: codes are written with underscores."""
    return "" if not text else text if " " in text else text.replace("_", " ")


def sentence(text: str) -> str:
    """With a capital letter and a full stop, whoever wrote it."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")


def number(value: float | None, digits: int = 2) -> str:
    """Fixed digits, so that columns align; a real minus sign; very small and very large ones in powers of ten; thousands apart."""
    if value is None:
        return MISSING
    if value != value:  # NaN
        return "not a number"
    if value != 0 and (abs(value) < 0.5 * 10**-digits or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}·10{_superscript(int(exponent))}".replace("-", "−")
    return f"{value:,.{digits}f}".replace(",", " ").replace("-", "−")


def score(value: float | None, score_range: tuple[float, float]) -> str:
    """A score, or a mean of scores: what is nothing on their scale is 0, not a power of ten."""
    low, high = score_range
    return number(0.0 if value is not None and abs(value) < 0.005 * (high - low) else value)


def count(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f} %"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


@dataclass(frozen=True, slots=True)
class MetricWords:
    """A metric in plain words. ``form``: how its value is written (number, percent, count)."""

    name: str
    meaning: str
    form: str = "number"
    digits: int = 2

    def write(self, value: float | None) -> str:
        if value is None:
            return MISSING
        if self.form == "percent":
            return percent(value)
        return count(round(value)) if self.form == "count" else number(value, self.digits)


PHASES = {
    "starting": "Starting",
    "waiting": "Waiting for scores",
    "pretraining": "Pretraining the value model",
    "updating": "Updating the policy",
    "publishing": "Publishing a version",
    "paused": "Paused",
    "alarm": "Stopped by the self-check",
    "stopped": "Not running",
}

RECEIPTS = {
    "received": "received; the answer is still being written",
    "queued": "waiting for an update",
    "trained": "used in an update; the new version is not serving yet",
    "live": "live",
    "expired": "expired, not used",
    "superseded": "replaced by your newer score",
    "not_trainable": "kept, but not trained on",
    "rejected": "the update was rejected",
    "rolled_back": "its version was rolled back",
}

OWN_REASONS = {
    TrajectoryState.REJECTED: "in an update that a gate refused",
    TrajectoryState.EXPIRED: "expired",
    TrajectoryState.NOT_TRAINABLE: "not trainable",
}
"""Answers whose stored reason is of no known kind."""

FATES = {
    TrajectoryState.PENDING: "Waiting for a score",
    TrajectoryState.READY: "Scored, and waiting for an update",
    TrajectoryState.CLAIMED: "In an update now",
    TrajectoryState.TRAINED: "An update was trained on it",
    TrajectoryState.REJECTED: "The update it was in was discarded",
    TrajectoryState.EXPIRED: "It expired unused",
    TrajectoryState.NOT_TRAINABLE: "It is never trained on",
}
