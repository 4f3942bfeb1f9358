"""How long the policy takes to follow when what people want changes. Pure: a stream of scores in, shifts out.

Knows nothing of where scores come from.

A shift is a fall of the scores that Page-Hinkley finds (river.drift.PageHinkley, mode "down", threshold 3, on scores mapped to [0, 1]). The detector
speaks some scores after the fall began, so the beginning is placed by the largest split of the scores since the detector last started: the k that
maximises k(n−k)/n · (mean before − mean after)², the usual estimate of one change of mean.

- level: mean of the WINDOW scores before the beginning.
- depth: level minus the lowest moving average (over WINDOW scores) between the beginning and the recovery.
- clear: the WINDOW scores from the beginning on are lower than those before it by more than CLEAR standard errors of the difference. Of scores that
  are 0 or 1 the detector also finds falls that chance makes; these are kept, and told apart.
- recovered: the moving average has fallen below RECOVERED · level, and that of WINDOW scores since the beginning is at or above it: one that still
  counts scores from before the fall would take their luck for a recovery. A fall that never takes it below is recovered at once (0 scores). A shift
  that the next clear one overtakes before that is never recovered.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 20
THRESHOLD = 3.0
RECOVERED = 0.8
CLEAR = 3.0
FEWEST = 2 * WINDOW
"""Scores below which nothing is looked for."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Positions are indices into the stream, times Unix seconds, ``level``, ``lowest`` and ``depth`` in units of the score.

    ``recovered``, ``scores_to_recovery``, ``seconds_to_recovery``: None while it is not recovered. ``overtaken``: the next shift came before that.
    """

    began: int
    found: int
    began_at: float
    found_at: float
    level: float
    lowest: float
    depth: float
    recovered: int | None
    recovered_at: float | None
    scores_to_recovery: int | None
    seconds_to_recovery: float | None
    overtaken: bool
    clear: bool


def find_shifts(stream: Sequence[tuple[float, float]], low: float, high: float) -> tuple[Shift, ...]:
    """The shifts of ``stream``, (when in Unix seconds, score in [``low``, ``high``]) in order of time; oldest first."""
    if len(stream) < FEWEST:
        return ()
    values = [(value - low) / (high - low) for _, value in stream]
    averages = _moving_averages(values)
    places = _detect(values)
    clear = {began for began, _ in places if _is_clear(values[max(0, began - WINDOW) : began], values[began : began + WINDOW])}
    shifts = []
    for began, found in places:
        end = min((other for other in clear if other > began), default=len(stream))
        shifts.append(_shift(stream, values, averages, (began, found), end, began in clear, (low, high)))
    return tuple(shifts)


def _detect(values: Sequence[float]) -> list[tuple[int, int]]:
    """(began, found) of each shift."""
    # Imported here: it brings scipy.stats along, a second that only who looks for shifts has to pay.
    from river.drift import PageHinkley

    detector = PageHinkley(mode="down", threshold=THRESHOLD)
    places: list[tuple[int, int]] = []
    start = 0
    for index, value in enumerate(values):
        detector.update(value)
        if detector.drift_detected:
            began = start + _split(values[start : index + 1])
            places.append((began, index))
            start = began  # the detector starts anew by itself; what came after the fall is the next one's past
    return places


def _split(values: Sequence[float]) -> int:
    """The k in 1 … n−1 that maximises k(n−k)/n · (mean of the first k − mean of the rest)², among those where the mean falls."""
    total, before = sum(values), 0.0
    count = len(values)
    best, place = -1.0, 1
    for k in range(1, count):
        before += values[k - 1]
        fall = before / k - (total - before) / (count - k)
        gain = k * (count - k) / count * fall * fall
        if fall > 0 and gain > best:
            best, place = gain, k
    return place


def _moving_averages(values: Sequence[float]) -> list[float]:
    """Mean of the last WINDOW values up to and with each; of fewer at the beginning."""
    averages, total = [], 0.0
    for index, value in enumerate(values):
        total += value - (values[index - WINDOW] if index >= WINDOW else 0.0)
        averages.append(total / min(index + 1, WINDOW))
    return averages


def _shift(
    stream: Sequence[tuple[float, float]],
    values: Sequence[float],
    averages: Sequence[float],
    place: tuple[int, int],
    end: int,
    clear: bool,
    score_range: tuple[float, float],
) -> Shift:
    (began, found), (low, high) = place, score_range
    past = values[max(0, began - WINDOW) : began]
    level = sum(past) / len(past)
    # Rounding of running sums must not decide whether an average is at the bound.
    bound = RECOVERED * level - 1e-9
    fallen = next((index for index in range(began, end) if averages[index] < bound), None)
    if fallen is None:
        recovered: int | None = began
    else:
        recovered = next((index for index in range(max(fallen, began + WINDOW - 1), end) if averages[index] >= bound), None)
    lowest = min(averages[began : (end if recovered is None or fallen is None else recovered + 1)], default=averages[-1])
    began_at = stream[began][0]
    recovered_at = None if recovered is None else stream[recovered][0]
    return Shift(
        began=began,
        found=found,
        began_at=began_at,
        found_at=stream[found][0],
        level=low + level * (high - low),
        lowest=low + lowest * (high - low),
        depth=max(0.0, level - lowest) * (high - low),
        recovered=recovered,
        recovered_at=recovered_at,
        scores_to_recovery=None if recovered is None else recovered - began,
        seconds_to_recovery=None if recovered_at is None else recovered_at - began_at,
        overtaken=recovered is None and end < len(stream),
        clear=clear,
    )


def _is_clear(before: Sequence[float], after: Sequence[float]) -> bool:
    if len(before) < 2 or len(after) < 2:
        return False
    error = math.sqrt(statistics.variance(before) / len(before) + statistics.variance(after) / len(after))
    return statistics.fmean(before) - statistics.fmean(after) > CLEAR * error
