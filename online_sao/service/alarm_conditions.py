"""When something is wrong: each condition a small pure function from measured numbers to a finding, or None where all is well.

Owns the formulas, the messages and the advice. Knows nothing of where numbers come from or what is done about a finding. A condition whose numbers
are missing is not judged at all: an alarm that is open stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from online_sao.config import AlarmSettings

Kind = Literal[
    "score_drop",
    "response_length",
    "distinct_2",
    "perplexity",
    "kl_base",
    "gate_failed",
    "learner_silent",
    "self_check_failed",
    "disk_nearly_full",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong now. ``rollback_to``: the version to go back to, where going back is what helps."""

    severity: Literal["warning", "critical"]
    message: str
    advice: str
    value: float
    threshold: float
    policy_version: int | None = None
    rollback_to: int | None = None


@dataclass(frozen=True, slots=True)
class ScoreGroup:
    """Scores of the answers of neighbouring versions; ``newest_version`` is the newest of them."""

    newest_version: int
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)

    @property
    def squared_error(self) -> float:
        """Squared standard error of the mean: s² / n, with n − 1 under s²."""
        mean, n = self.mean, len(self.scores)
        return math.fsum((score - mean) ** 2 for score in self.scores) / (n - 1) / n


@dataclass(frozen=True, slots=True)
class Ability:
    """What an evaluation found of one version, and of the version it is compared with (the base, or the oldest evaluated)."""

    policy_version: int
    reference_version: int
    perplexity: tuple[float, float] | None
    distinct_2: tuple[float, float] | None
    response_tokens: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of recent answers and of the base version's."""

    recent: float
    base: float


@dataclass(frozen=True, slots=True)
class LatestUpdate:
    number: int
    accepted: bool
    reason: str | None
    kl_base: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything the conditions look at. None: not measured, so not judged. ``learner_silence``: seconds since its last sign of life, by a clock
    that never jumps."""

    scores: tuple[ScoreGroup, ScoreGroup] | None = None
    """(before, recent)."""
    ability: Ability | None = None
    lengths: Lengths | None = None
    update: LatestUpdate | None = None
    learner_silence: float | None = None
    self_check_problem: str | None = None
    disk_free_bytes: float | None = None


def judge(measured: Measured, settings: AlarmSettings) -> Mapping[Kind, Finding | None]:
    """Kind → what is wrong, or None where the condition is gone. Kinds that could not be judged are missing."""
    found: dict[Kind, Finding | None] = {"self_check_failed": self_check_failed(measured.self_check_problem)}
    if measured.scores is not None:
        found["score_drop"] = score_drop(*measured.scores, settings)
    pairs = _length_pairs(measured)
    if pairs:
        found["response_length"] = response_length(pairs, settings)
    ability = measured.ability
    if ability is not None and ability.distinct_2 is not None:
        found["distinct_2"] = distinct_2(ability, *ability.distinct_2, settings)
    if ability is not None and ability.perplexity is not None:
        found["perplexity"] = perplexity(ability, *ability.perplexity, settings)
    if measured.update is not None:
        found["gate_failed"] = gate_failed(measured.update)
        if measured.update.kl_base is not None:
            found["kl_base"] = kl_base(measured.update, measured.update.kl_base, settings)
    if measured.learner_silence is not None:
        found["learner_silent"] = learner_silent(measured.learner_silence, settings)
    if measured.disk_free_bytes is not None:
        found["disk_nearly_full"] = disk_nearly_full(measured.disk_free_bytes, settings)
    return found


def score_drop(before: ScoreGroup, recent: ScoreGroup, settings: AlarmSettings) -> Finding | None:
    """Welch's comparison of two means with unequal variances: the fall is real where even its lower bound

        (mean_before − mean_recent) − k · sqrt(s²_before / n_before + s²_recent / n_recent),   k = score_drop_errors

    is above 0, and the fall itself at least score_drop_minimum (scores that never vary have no noise to hide in).
    """
    fall = before.mean - recent.mean
    noise = settings.score_drop_errors * math.sqrt(before.squared_error + recent.squared_error)
    if fall - noise <= 0 or fall < settings.score_drop_minimum:
        return None
    return Finding(
        severity="critical",
        message=(
            f"The mean score fell from {before.mean:.3g} ({len(before.scores)} scores, up to version {before.newest_version}) to {recent.mean:.3g} "
            f"({len(recent.scores)} scores, up to version {recent.newest_version}); noise explains {noise:.2g} of these {fall:.2g}."
        ),
        advice=(
            f"Read some low-scored answers in the interactions. If the policy is at fault, roll back to version {before.newest_version}; "
            "if the users want something else now, let it learn."
        ),
        value=recent.mean,
        threshold=before.mean - max(noise, settings.score_drop_minimum),
        policy_version=recent.newest_version,
        rollback_to=before.newest_version,
    )


def response_length(pairs: Sequence[tuple[str, float, float]], settings: AlarmSettings) -> Finding | None:
    """``pairs``: (what was measured, mean tokens now, mean tokens of the base). The first whose ratio leaves the band."""
    for what, now, base in pairs:
        ratio = now / base
        if settings.length_collapse < ratio < settings.length_explosion:
            continue
        short = ratio <= settings.length_collapse
        return Finding(
            severity="warning",
            message=f"{what} are {now:.0f} tokens long on average, {ratio:.2g} times the base model's {base:.0f}.",
            advice=(
                f"{'Very short' if short else 'Very long'} answers are what scores seem to reward. Look at recent interactions; if users do not want "
                "this, roll back, and score such answers low."
            ),
            value=ratio,
            threshold=settings.length_collapse if short else settings.length_explosion,
        )
    return None


def distinct_2(ability: Ability, now: float, base: float, settings: AlarmSettings) -> Finding | None:
    """The share of different word pairs among all pairs of the fixed prompts' answers, against the reference's."""
    bound = settings.distinct_2_fraction * base
    if now >= bound:
        return None
    return Finding(
        severity="warning",
        message=f"Answers of version {ability.policy_version} repeat themselves: distinct-2 is {now:.3g}, version {ability.reference_version} "
        f"has {base:.3g}.",
        advice="Look at its samples on the fixed prompts. Roll back, or raise learning.anchor_coefficient (or lower the learning rate) and go on.",
        value=now,
        threshold=bound,
        policy_version=ability.policy_version,
        rollback_to=None,
    )


def perplexity(ability: Ability, now: float, base: float, settings: AlarmSettings) -> Finding | None:
    """Of the fixed text, against the reference's."""
    bound = settings.perplexity_factor * base
    if now <= bound:
        return None
    return Finding(
        severity="warning",
        message=f"Version {ability.policy_version} predicts the fixed text worse: perplexity {now:.3g}, version {ability.reference_version} "
        f"has {base:.3g}.",
        advice="The policy is losing general ability. Roll back, or raise learning.anchor_coefficient and go on.",
        value=now,
        threshold=bound,
        policy_version=ability.policy_version,
    )


def kl_base(update: LatestUpdate, value: float, settings: AlarmSettings) -> Finding | None:
    if value <= settings.kl_base:
        return None
    return Finding(
        severity="warning",
        message=f"Update {update.number}: KL to the base model is {value:.3g} nats a token, above {settings.kl_base:g}.",
        advice="The policy is far from the base. Compare its samples with the base's; raise learning.anchor_coefficient if they are worse.",
        value=value,
        threshold=settings.kl_base,
    )


def gate_failed(update: LatestUpdate) -> Finding | None:
    if update.accepted:
        return None
    return Finding(
        severity="warning",
        message=f"Update {update.number} was refused: {update.reason}.",
        advice="Its scores are used up and nothing was published. If it happens again, lower the learning rate, or roll back to a healthy version.",
        value=float(update.number),
        threshold=0.0,
    )


def learner_silent(silence: float, settings: AlarmSettings) -> Finding | None:
    if silence <= settings.learner_silent_seconds:
        return None
    return Finding(
        severity="critical",
        message=f"The learner has given no sign of life for {silence:.0f} s.",
        advice="Chats and scores go on and nothing is lost, but nothing is learned. The server's log says why the learner ended or does not start.",
        value=silence,
        threshold=settings.learner_silent_seconds,
    )


def self_check_failed(problem: str | None) -> Finding | None:
    if problem is None:
        return None
    return Finding(
        severity="critical",
        message=f"Learning is stopped: {problem}.",
        advice="The engine and the learner do not agree on the policy. Run `online-sao doctor`; restart the server; then resume the learner.",
        value=1.0,
        threshold=0.0,
    )


def disk_nearly_full(free_bytes: float, settings: AlarmSettings) -> Finding | None:
    free, bound = free_bytes / 1e6, settings.disk_free_megabytes
    if free >= bound:
        return None
    return Finding(
        severity="critical" if free < bound / 4 else "warning",
        message=f"{free:.0f} MB are left on the disk of the data folder.",
        advice=f"Free space, or move storage.data_dir to a larger disk: below a few megabytes, chats and scores are refused. "
        f"The alarm clears above {bound:g} MB.",
        value=free,
        threshold=bound,
    )


def _length_pairs(measured: Measured) -> list[tuple[str, float, float]]:
    pairs = []
    if measured.lengths is not None and measured.lengths.base > 0:
        pairs.append(("Recent answers", measured.lengths.recent, measured.lengths.base))
    tokens = measured.ability.response_tokens if measured.ability is not None else None
    if tokens is not None and tokens[1] > 0:
        pairs.append(("Answers to the fixed prompts", *tokens))
    return pairs
