"""A score as it is sent, and as it is once every field has been checked. Owns what may be sent; knows nothing of what is stored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from online_sao.config import RewardSettings
from online_sao.errors import CompletionNotFoundError, InvalidRequestError, InvalidScoreError, UnsupportedFeatureError
from online_sao.storable import unstorable

_MAX_COMMENT = 10_000


@dataclass(frozen=True, slots=True)
class FeedbackSubmission:
    """A score as it was sent. ``value`` is the JSON value, unconverted: a string "0.7" is refused, not read."""

    completion_id: str | None
    value: object
    choice: int = 0
    metric: str = "score"
    comment: str | None = None
    idempotency_key: str | None = None
    episode_id: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A submission whose every field has been checked."""

    completion_id: str
    choice: int
    metric: str
    value: float
    comment: str | None
    idempotency_key: str | None

    @property
    def digest(self) -> str:
        body = [self.completion_id, self.choice, self.metric, self.value, self.comment]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def checked(submission: FeedbackSubmission, settings: RewardSettings) -> Score:
    """Raises CompletionNotFoundError, InvalidRequestError, InvalidScoreError, or UnsupportedFeatureError for an episode."""
    if submission.episode_id is not None:
        raise UnsupportedFeatureError("Episodes cannot be scored yet: score each completion by its completion_id.", param="episode_id")
    if not submission.completion_id:
        raise InvalidRequestError("Name the completion that is scored: completion_id is missing.", param="completion_id")
    if unstorable(submission.completion_id) is not None:
        raise CompletionNotFoundError("There is no such completion.", param="completion_id")
    return Score(
        completion_id=submission.completion_id,
        choice=submission.choice,
        metric=_text(submission.metric, "metric", 64) or "",
        value=_score_value(submission.value, settings),
        comment=_text(submission.comment, "comment", _MAX_COMMENT),
        idempotency_key=_text(submission.idempotency_key, "idempotency_key", 256),
    )


def _score_value(value: object, settings: RewardSettings) -> float:
    low, high = settings.score_min, settings.score_max
    if isinstance(value, bool):
        return high if value else low
    # NaN fails every comparison, infinities and integers too large for a float fail this one.
    if isinstance(value, (int, float)) and low <= value <= high:
        return float(value)
    raise InvalidScoreError(f"value must be a number from {low:g} to {high:g}, or true or false, not {_shown(value)}.", param="value")


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, (int, float)):
        # repr of a very long integer raises.
        return repr(value) if abs(value) < 1e100 or isinstance(value, float) else "an integer of more than 100 digits"
    return "an array" if isinstance(value, list) else "an object"


def _text(text: str | None, param: str, limit: int) -> str | None:
    if text is None:
        return None
    if not (text or param == "comment") or len(text) > limit or unstorable(text) is not None:
        raise InvalidRequestError(f"{param} must be 1 to {limit} characters of text, without NUL or lone surrogates.", param=param)
    return text or None
