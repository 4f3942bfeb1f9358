"""What the serving process counts of itself, for /metrics. Owns its own Prometheus registry and the metric names; knows nothing of HTTP.

Names: ``online_sao_`` and the metric's name of docs/design.md §4 with its slash as an underscore (serve/… → online_sao_serve_…).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from online_sao.inference.engine import EngineLoad, SwapReport
from online_sao.service.chat_log import SpoolState
from online_sao.service.chat_records import AdmittedRequest, Outcome
from online_sao.service.evaluations import EvaluationStatus
from online_sao.types import TrajectoryState

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Meters:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._completions = Counter("online_sao_serve_completions", "Choices ended, by finish reason", ["finish_reason"], registry=self.registry)
        self._tokens = Counter("online_sao_serve_tokens", "Tokens of ended choices", ["kind"], registry=self.registry)
        self._first_token = Histogram(
            "online_sao_serve_first_token_seconds", "From admission to the first token", registry=self.registry, buckets=_SECONDS
        )
        self._total = Histogram("online_sao_serve_completion_seconds", "From admission to the last token", registry=self.registry, buckets=_SECONDS)
        self._running = Gauge("online_sao_serve_running", "Completions the engine generates now", registry=self.registry)
        self._waiting = Gauge("online_sao_serve_waiting", "Completions waiting for a place in the engine", registry=self.registry)
        self._version = Gauge("online_sao_serve_policy_version", "The version that samples the next token", registry=self.registry)
        self._swaps = Counter("online_sao_serve_swaps", "Weight swaps", registry=self.registry)
        self._pause = Histogram(
            "online_sao_serve_swap_pause_seconds",
            "Seconds a swap generated no token",
            registry=self.registry,
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        )
        self._spool_records = Gauge("online_sao_serve_spool_records", "Records of chats that wait for the database", registry=self.registry)
        self._spool_bytes = Gauge("online_sao_serve_spool_bytes", "What the spool takes on disk", registry=self.registry)
        self._spool_limit = Gauge("online_sao_serve_spool_limit_bytes", "Bytes at which the spool is full", registry=self.registry)
        self._database_up = Gauge(
            "online_sao_serve_database_up", "1 where the database answered; else what is read from it is as it was last", registry=self.registry
        )
        self._leading = Gauge("online_sao_serve_leading", "1 in the process that runs jobs, activation and learner", registry=self.registry)
        self._trajectories = Gauge("online_sao_data_trajectories_by_state", "Trajectories, by state", ["state"], registry=self.registry)
        self._alarms = Gauge("online_sao_alarm", "1 while the condition of this kind of alarm holds", ["kind"], registry=self.registry)
        self._evaluation = Gauge(
            "online_sao_evaluation", "The newest evaluation: the version, and what it measured", ["measure"], registry=self.registry
        )
        self._learned: dict[str, Gauge] = {}

    def completed(self, request: AdmittedRequest, outcome: Outcome) -> None:
        self._completions.labels(outcome.completion.finish_reason).inc()
        self._tokens.labels("completion").inc(len(outcome.completion.token_ids))
        self._tokens.labels("prompt").inc(len(request.prompt_ids))
        self._total.observe(max(0.0, outcome.completed_at - request.created_at))
        if outcome.first_token_at is not None:
            self._first_token.observe(max(0.0, outcome.first_token_at - request.created_at))

    def swapped(self, report: SwapReport) -> None:
        self._swaps.inc()
        self._pause.observe(report.pause_seconds)

    def render(
        self,
        *,
        load: EngineLoad | None,
        policy_version: int | None,
        trajectories: Mapping[TrajectoryState, int],
        last_update: Mapping[str, float | None],
        alarms: Mapping[str, bool],
        evaluation: EvaluationStatus | None,
        spool: SpoolState,
        database_up: bool,
        leading: bool,
    ) -> bytes:
        """The exposition text. ``last_update``: the newest update's metrics by name; ``alarms``: kind → whether it holds; ``evaluation``: the newest.

        None, for load and version: the engine is still loading.
        """
        self._spool_records.set(spool.records)
        self._spool_bytes.set(spool.bytes)
        self._spool_limit.set(spool.limit_bytes)
        self._database_up.set(database_up)
        self._leading.set(leading)
        if load is not None:
            self._running.set(load.running)
            self._waiting.set(load.waiting)
        if policy_version is not None:
            self._version.set(policy_version)
        for state, count in trajectories.items():
            self._trajectories.labels(state).set(count)
        for name, value in last_update.items():
            if value is not None:
                self._gauge(name).set(value)
        for kind, holds in alarms.items():
            self._alarms.labels(kind).set(holds)
        if evaluation is not None:
            self._evaluated(evaluation)
        return generate_latest(self.registry)

    def _evaluated(self, evaluation: EvaluationStatus) -> None:
        for measure in ("policy_version", "perplexity", "distinct_2", "response_tokens"):
            value = getattr(evaluation, measure)
            self._evaluation.labels(measure).set(math.nan if value is None else value)

    def _gauge(self, name: str) -> Gauge:
        if name not in self._learned:
            full = "online_sao_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            self._learned[name] = Gauge(full, f"{name} of the newest update", registry=self.registry)
        return self._learned[name]
