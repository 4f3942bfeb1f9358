"""Why answers and scores are not used, in plain words, with what to do. Owns the kinds of reasons; where they arise is elsewhere.

A stored reason is a code or a sentence; its beginning says of which kind it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Kinds of reasons, as filters name them."""

    STORE_FALSE = "store_false"
    GREEDY_SAMPLING = "greedy_sampling"
    TRUNCATED_DISTRIBUTION = "truncated_distribution"
    METRIC_NOT_WEIGHTED = "metric_not_weighted"
    ALREADY_USED = "already_used"
    NO_SCORE = "no_score"
    POLICY_LAG = "policy_lag"
    ROLLED_BACK = "rolled_back"
    ERASED = "erased"
    ABANDONED = "abandoned"
    INTERRUPTED = "interrupted"
    ENGINE_ERROR = "engine_error"
    NO_ACTION_TOKENS = "no_action_tokens"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Reason:
    """``beginning``: how stored reasons of the kind begin. ``words``: what was so. ``advice``: what to do, where anything is to be done."""

    code: ReasonCode
    beginning: str
    words: str
    advice: str


_NEUTRALISE = "or set exploration.neutralise_sampling to learn from such requests too."
_KINDS = (
    Reason(
        ReasonCode.STORE_FALSE,
        "store_false",
        "asked for with store: false",
        "It was the client's wish; leave store out of the request to learn from its answers.",
    ),
    Reason(
        ReasonCode.GREEDY_SAMPLING,
        "greedy_sampling",
        "sampled greedily (temperature 0)",
        f"Send a temperature above 0, {_NEUTRALISE}",
    ),
    Reason(
        ReasonCode.TRUNCATED_DISTRIBUTION,
        "truncated_distribution",
        "sampled from a cut distribution (top_p below 1)",
        f"Send top_p 1, {_NEUTRALISE}",
    ),
    Reason(
        ReasonCode.METRIC_NOT_WEIGHTED,
        "metric_not_weighted",
        "for a metric without a weight",
        "Give the metric a weight in reward.metric_weights and restart the server; it then counts in scores that come later.",
    ),
    Reason(
        ReasonCode.ALREADY_USED,
        "already_used",
        "came after an update had taken up the answer",
        "Each answer moves the policy once. Send a changed score before its receipt says trained.",
    ),
    Reason(
        ReasonCode.NO_SCORE,
        "no score before the deadline",
        "nobody scored in time",
        "Send scores sooner, raise reward.score_deadline_seconds, or set reward.default_score.",
    ),
    Reason(
        ReasonCode.POLICY_LAG,
        "policy_lag",
        "too many updates old when their turn came",
        "Send scores sooner, or raise learning.max_policy_lag.",
    ),
    Reason(
        ReasonCode.ROLLED_BACK,
        "policy version ",
        "written by a version that was rolled back",
        "Nothing is to be done: what was left behind in a rollback is not learned from.",
    ),
    Reason(ReasonCode.ERASED, "erased", "erased on request or by retention", "Nothing is to be done: what is erased is never trained on."),
    Reason(ReasonCode.ABANDONED, "abandoned", "the client left before the end", "Keep the connection open until the answer ends."),
    Reason(
        ReasonCode.INTERRUPTED,
        "interrupted",
        "the server ended while they were written",
        "Ask again; stop the server with SIGTERM so that answers end.",
    ),
    Reason(ReasonCode.ENGINE_ERROR, "engine_error", "the engine failed", "The server's log says why the engine failed."),
    Reason(
        ReasonCode.NO_ACTION_TOKENS,
        "no_action_tokens",
        "empty answers",
        "Nothing was sampled that could be learned from; look at the prompt and the stops.",
    ),
    Reason(
        ReasonCode.UNREADABLE,
        "cannot be trained",
        "their data cannot be read",
        "The reason names the fault; the database may be damaged: run online-sao doctor.",
    ),
)
_BY_CODE = {kind.code: kind for kind in _KINDS}


def of_code(code: ReasonCode) -> Reason:
    return _BY_CODE[code]


def kind_of(reason: str | None) -> Reason | None:
    """None where nothing is known beyond the words themselves."""
    return next((kind for kind in _KINDS if reason is not None and reason.startswith(kind.beginning)), None)


def advice_for(reason: str | None) -> str | None:
    kind = kind_of(reason)
    return kind.advice if kind is not None else None
