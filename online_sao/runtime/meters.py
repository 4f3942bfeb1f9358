"""What the serving process counts of itself, for /metrics. Owns the names of these metrics; knows nothing of HTTP or the database.

Names are ``online_sao_`` and, where vLLM counts the same thing, vLLM's own name for it (time_to_first_token_seconds); what belongs to a changing
policy is ``online_sao_serve_…``. All are listed in docs/operations/monitoring.md.
"""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from online_sao.inference.engine import EngineLoad, SwapReport
from online_sao.runtime.status_metrics import Reading, StatusMetrics
from online_sao.service.chat_log import SpoolState
from online_sao.service.chat_records import AdmittedRequest, Outcome

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5)
_SWAP_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


# Otherwise every counter and histogram has a second series that says when it began.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Meters:
    """A registry of its own, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._status = StatusMetrics()
        self.registry.register(self._status)
        self._completions = self._counter("completions", "Choices ended, by finish reason", "finish_reason")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended choices")
        self._generation_tokens = self._counter("generation_tokens", "Sampled tokens of ended choices")
        self._first_token = self._histogram("time_to_first_token_seconds", "From admission to the first token", _SECONDS)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean time between the tokens of a choice", _TOKEN_SECONDS)
        self._total = self._histogram("e2e_request_latency_seconds", "From admission to the last token", _SECONDS)
        self._running = Gauge("online_sao_num_requests_running", "Completions the engine generates now", registry=self.registry)
        self._waiting = Gauge("online_sao_num_requests_waiting", "Completions waiting for a place in the engine", registry=self.registry)
        self._cache = Gauge(
            "online_sao_kv_cache_usage_perc", "KV cache kept for running completions at their longest; 1: all of it", registry=self.registry
        )
        self._version = Gauge("online_sao_serve_policy_version", "The version that samples the next token", registry=self.registry)
        self._swaps = self._counter("serve_swaps", "Weight swaps")
        self._pause = self._histogram("serve_swap_pause_seconds", "Seconds a swap generated no token", _SWAP_SECONDS)
        self._swap = self._histogram("serve_swap_seconds", "Seconds a swap took in all", _SWAP_SECONDS)
        self._spool_records = Gauge("online_sao_serve_spool_records", "Records of chats that wait for the database", registry=self.registry)
        self._spool_bytes = Gauge("online_sao_serve_spool_bytes", "What the spool takes on disk", registry=self.registry)
        self._spool_limit = Gauge("online_sao_serve_spool_limit_bytes", "Bytes at which the spool is full", registry=self.registry)
        self._leading = Gauge("online_sao_serve_leading", "1 in the process that runs jobs, activation and learner", registry=self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"online_sao_{name}", words, labels, registry=self.registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"online_sao_{name}", words, registry=self.registry, buckets=buckets)

    def completed(self, request: AdmittedRequest, outcome: Outcome) -> None:
        tokens = len(outcome.completion.token_ids)
        self._completions.labels(outcome.completion.finish_reason).inc()
        self._generation_tokens.inc(tokens)
        self._prompt_tokens.inc(len(request.prompt_ids))
        self._total.observe(max(0.0, outcome.completed_at - request.created_at))
        if outcome.first_token_at is None:
            return
        self._first_token.observe(max(0.0, outcome.first_token_at - request.created_at))
        if tokens > 1:
            self._per_token.observe(max(0.0, outcome.completed_at - outcome.first_token_at) / (tokens - 1))

    def swapped(self, report: SwapReport) -> None:
        self._swaps.inc()
        self._pause.observe(report.pause_seconds)
        self._swap.observe(report.total_seconds)

    def render(self, *, load: EngineLoad | None, policy_version: int | None, reading: Reading | None, spool: SpoolState, leading: bool) -> bytes:
        """The exposition text. ``load`` and ``policy_version`` None: the engine is still loading; ``reading`` None: the database does not answer."""
        self._spool_records.set(spool.records)
        self._spool_bytes.set(spool.bytes)
        self._spool_limit.set(spool.limit_bytes)
        self._leading.set(leading)
        if load is not None:
            self._running.set(load.running)
            self._waiting.set(load.waiting)
            if load.kv_cache_usage is not None:
                self._cache.set(load.kv_cache_usage)
        self._version.set(math.nan if policy_version is None else policy_version)
        self._status.reading = reading
        return generate_latest(self.registry)
