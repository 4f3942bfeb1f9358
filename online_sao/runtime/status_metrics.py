"""What the database says of scores, updates and the learner, as metrics. Owns their names; every scrape shows one reading and nothing of the last.

The metrics of an update keep their names of docs/design.md §4, the slash as an underscore: policy/ess_fraction is online_sao_policy_ess_fraction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from online_sao.service.evaluations import EvaluationStatus
from online_sao.service.status import StatusSnapshot, Totals

_MEASURES = ("policy_version", "perplexity", "distinct_2", "response_tokens")


@dataclass(frozen=True, slots=True)
class Reading:
    """``alarms``: kind → whether it is raised; ``evaluation``: the newest."""

    snapshot: StatusSnapshot
    totals: Totals
    alarms: Mapping[str, bool]
    evaluation: EvaluationStatus | None


class StatusMetrics(Collector):
    """``reading`` None: the database does not answer, and nothing else is known."""

    def __init__(self) -> None:
        self.reading: Reading | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing: asked when it is registered, before there is a reading."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield _gauge("database_up", "1 while the database answers", self.reading is not None)
        if self.reading is not None:
            yield from _learning(self.reading.snapshot, self.reading.totals)
            yield from _newest_update(self.reading.snapshot)
            yield _labelled("alarm", "1 while an alarm of this kind is raised", "kind", self.reading.alarms)
            yield from _evaluation(self.reading.evaluation)


def _learning(snapshot: StatusSnapshot, totals: Totals) -> Iterator[Metric]:
    learner = snapshot.learner
    yield _gauge("learner_up", "1 while the learner gives signs of life, wherever it runs", learner.presence == "alive")
    yield _gauge("learner_paused", "1 while the learner takes up no batch", learner.paused)
    yield _gauge("learner_silence_seconds", "Seconds without a sign of life from the learner", learner.silence)
    oldest = 0.0 if snapshot.oldest_ready_at is None else max(0.0, snapshot.as_of - snapshot.oldest_ready_at)
    yield _gauge("data_oldest_ready_seconds", "Age of the oldest scored trajectory that waits for an update", oldest)
    yield _labelled("data_trajectories_by_state", "Trajectories, by state", "state", snapshot.pipeline)
    yield _labelled("receipts", "Scores of the last 24 hours, by what became of them", "status", totals.receipts)
    updates = CounterMetricFamily("online_sao_updates", "Updates the learner made, by whether the gates let them through", labels=["result"])
    updates.add_metric(["accepted"], totals.accepted_updates)
    updates.add_metric(["refused"], totals.refused_updates)
    yield updates


def _newest_update(snapshot: StatusSnapshot) -> Iterator[Metric]:
    update = snapshot.last_update
    if update is None:
        return
    yield _gauge("update_timestamp_seconds", "When the newest update ended, in Unix seconds", update.finished_at)
    for name, value in update.metrics.items():
        if value is not None:
            yield _gauge(re.sub(r"[^a-zA-Z0-9_]", "_", name), f"{name} of the newest update", value)


def _evaluation(evaluation: EvaluationStatus | None) -> Iterator[Metric]:
    if evaluation is not None:
        measured = {measure: getattr(evaluation, measure) for measure in _MEASURES}
        values = {measure: math.nan if value is None else value for measure, value in measured.items()}
        yield _labelled("evaluation", "The newest evaluation: the version, and what it measured", "measure", values)


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"online_sao_{name}", words, value=float(value))


def _labelled(name: str, words: str, label: str, values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(f"online_sao_{name}", words, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], float(value))
    return family
