"""What a run comes to: levels, recovery, area. Pure; the definitions were fixed before any recipe was compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from online_sao.benchmarks.tiny_policy.curves import finite_mean, numbers, smoothed

WINDOW = 40
"""Interactions that a level is the mean of."""
RECOVERED = 0.8
LEARNED = 0.1
"""Above the frozen control, in score: with less than this before a shift there was nothing to recover."""
ROUNDING = 1e-9
"""Of means that are compared."""
FULL_WINDOW = 256
"""Trajectories without which explained variance says little (docs/design.md §4)."""

RECOVERY = (
    f"Recovery: the first interaction after a shift at which the mean score of the last {WINDOW}, all of them after the shift, is at least "
    f"{RECOVERED:.0%} of the mean of the last {WINDOW} before it; so {WINDOW} is the least there is. Where the level before the shift was less than "
    f"{LEARNED} above the frozen control, nothing had been learned and nothing recovers. A phase without recovery counts as its length, marked >."
)


def recovery(after: Sequence[float], before: float, frozen_before: float) -> int | None:
    """How many interactions after the shift, from 1. ``after``: their scores; ``before``, ``frozen_before``: the level before the shift, and what the
    frozen control had there."""
    if before < frozen_before + LEARNED - ROUNDING or len(after) < WINDOW:
        return None
    return next((place for place, level in enumerate(smoothed(after, WINDOW), start=WINDOW) if level >= RECOVERED * before - ROUNDING), None)


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one run (training.run) that tables and verdicts are made of. ``area`` is the mean score, that is the area under the curve of
    scores divided by its length. Of a critic there are none where no value model was trained."""
    phases = [_phase(result, number) for number in range(len(result["phases"]))]
    shifts = phases[1:]
    series = {name: numbers(values) for name, values in result["series"].items()}
    critic = any(series.get("value/updates", ()))
    counts = series.get("value/explained_variance_trajectories", ())
    explained = series.get("value/explained_variance", [])
    judged = [value for value, count in zip(explained, counts, strict=True) if count >= FULL_WINDOW]
    return {
        "phases": phases,
        "area": statistics.fmean(result["scores"]),
        "area_after_shifts": statistics.fmean(result["scores"][result["phases"][1]["start"] :]),
        "frozen_area": statistics.fmean(result["frozen"]),
        "final": phases[-1]["final"],
        "minus_frozen": phases[-1]["final"] - phases[-1]["frozen_final"],
        "anchor_only": _level(result["anchor_only"]) if result["anchor_only"] else None,
        "minus_anchor_only": phases[-1]["final"] - _level(result["anchor_only"]) if result["anchor_only"] else None,
        "recovery": sum(phase["recovery"] or phase["interactions"] for phase in shifts),
        "unrecovered": sum(phase["recovery"] is None for phase in shifts),
        "explained_variance": finite_mean(judged or explained) if critic else None,
        "calibration_slope": finite_mean(series["value/calibration_slope"]) if critic else None,
        "kl_base": max(series["policy/kl_base"]) if "policy/kl_base" in series else None,
        "masked_fraction": finite_mean(series.get("policy/masked_fraction", ())),
        "update_seconds": statistics.median(result["seconds"]["update"]),
        "seconds": sum(result["seconds"]["update"]) + sum(result["seconds"]["sampling"]),
        "problems": len(result["problems"]),
    }


def _phase(result: Mapping[str, Any], number: int) -> dict[str, Any]:
    phase = result["phases"][number]
    start, length = phase["start"], phase["interactions"]
    scores, frozen = result["scores"][start : start + length], result["frozen"][start : start + length]
    found = {
        "name": phase["name"],
        "interactions": length,
        "area": statistics.fmean(scores),
        "final": _level(scores),
        "frozen_area": statistics.fmean(frozen),
        "frozen_final": _level(frozen),
        "before": None,
        "frozen_before": None,
        "recovery": None,
        "recovery_seconds": None,
    }
    if number:
        found["before"] = before = _level(result["scores"][:start])
        found["frozen_before"] = _level(result["frozen"][:start])
        found["recovery"] = recovered = recovery(scores, before, found["frozen_before"])
        found["recovery_seconds"] = _seconds(result, start, recovered or length)
    return found


def _level(scores: Sequence[float]) -> float:
    return statistics.fmean(scores[-WINDOW:])


def _seconds(result: Mapping[str, Any], start: int, interactions: int) -> float:
    """Of answering and learning, from ``start`` on until the batch with that many interactions had been learned from."""
    sampling, update = result["seconds"]["sampling"], result["seconds"]["update"]
    batch = len(result["scores"]) // len(update)
    batches = slice(start // batch, (start + interactions + batch - 1) // batch)
    return float(sum(sampling[batches]) + sum(update[batches]))
