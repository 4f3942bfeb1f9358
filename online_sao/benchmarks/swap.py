"""What a weight swap costs: the pause, the whole swap, and the longest wait for a token that a running request feels. Measures the embedded engine in
this process; nothing of HTTP, database or learner takes part. Run with `python -m online_sao.benchmarks.swap`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from online_sao.benchmarks.random_adapter import write_random_adapter
from online_sao.config import EngineSettings, PolicySettings
from online_sao.inference.engine import EngineRequest, SwapReport
from online_sao.inference.renderer import Renderer
from online_sao.inference.transformers_engine import TransformersEngine
from online_sao.models.catalog import obtain

KvPolicy = Literal["keep", "recompute"]
KV_POLICIES: tuple[KvPolicy, ...] = ("keep", "recompute")


class _Request:
    """One long completion; when each of its tokens came."""

    def __init__(self, engine: TransformersEngine, number: int, prompt_ids: tuple[int, ...]) -> None:
        self.token_times: list[float] = []
        self.task = asyncio.create_task(self._run(engine, EngineRequest(f"swap-{number}", prompt_ids, 100_000, 1.0, 1.0, ())))

    async def _run(self, engine: TransformersEngine, request: EngineRequest) -> None:
        async with aclosing(engine.generate(request)) as deltas:
            async for delta in deltas:
                self.token_times += [time.perf_counter()] * len(delta.token_ids)

    async def tokens(self, count: int) -> None:
        while len(self.token_times) < count:
            if self.task.done():
                self.task.result()
                raise RuntimeError("a request of the benchmark ended too early: the context is too short for its settings")
            await asyncio.sleep(0.002)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    def gaps(self, start: int) -> list[float]:
        """Seconds between tokens, from token ``start`` on."""
        return [b - a for a, b in zip(self.token_times[start:], self.token_times[start + 1 :], strict=False)]


async def _one_swap(
    engine: TransformersEngine, prompts: Sequence[tuple[int, ...]], tokens_before: int, version: int, adapter: Path
) -> tuple[SwapReport, float, float]:
    """(report, longest gap between tokens around the swap, median gap before it), in seconds; gaps are 0 without requests."""
    requests = [_Request(engine, number, prompt) for number, prompt in enumerate(prompts)]
    for request in requests:
        await request.tokens(tokens_before)
    seen = [len(request.token_times) for request in requests]
    report = await engine.swap(version, adapter)
    for request, count in zip(requests, seen, strict=True):
        await request.tokens(count + 3)
    stall = max((max(request.gaps(count - 1)) for request, count in zip(requests, seen, strict=True)), default=0.0)
    usual = statistics.median([gap for request, count in zip(requests, seen, strict=True) for gap in request.gaps(1)[: count - 2]] or [0.0])
    for request in requests:
        await request.end()
    return report, stall, usual


async def measure(
    model_path: Path, adapters: Sequence[Path], *, kv_policy: KvPolicy, in_flight: int, repetitions: int, tokens_before: int, threads: int
) -> dict[str, Any]:
    """Medians and maxima over ``repetitions`` swaps with ``in_flight`` requests that have each sampled ``tokens_before`` tokens."""
    engine = TransformersEngine(EngineSettings(threads=threads, kv_policy=kv_policy), model_path)
    renderer = Renderer.from_model(model_path)
    prompts = [renderer.render([{"role": "user", "content": f"Tell me {number + 2} things about the sea."}]) for number in range(in_flight)]
    await engine.start(0, None)
    try:
        await engine.swap(1, adapters[1])  # the first swap touches the pristine copies for the first time
        runs = [await _one_swap(engine, prompts, tokens_before, 2 + i, adapters[i % 2]) for i in range(repetitions)]
    finally:
        await engine.stop()
    reports = [report for report, _, _ in runs]
    return {
        "kv_policy": kv_policy,
        "in_flight": in_flight,
        "repetitions": repetitions,
        "pause_seconds": _spread([report.pause_seconds for report in reports]),
        "total_seconds": _spread([report.total_seconds for report in reports]),
        "stall_seconds": _spread([stall for _, stall, _ in runs]),
        "usual_token_seconds": round(statistics.median(usual for _, _, usual in runs), 4),
        "recomputed_tokens": round(statistics.median(report.recomputed_tokens for report in reports)),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 4), "max": round(max(values), 4)}


def _table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Weight swap: median (max) seconds; token gap: longest wait for a token around it")
    for heading in ("KV policy", "in flight", "pause", "whole swap", "token gap", "usual gap", "recomputed"):
        table.add_column(heading, justify="left" if heading == "KV policy" else "right")
    for result in results:
        spreads = [f"{result[key]['median']:.3f} ({result[key]['max']:.3f})" for key in ("pause_seconds", "total_seconds", "stall_seconds")]
        table.add_row(
            result["kv_policy"], str(result["in_flight"]), *spreads, f"{result['usual_token_seconds']:.3f}", str(result["recomputed_tokens"])
        )
    return table


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="swap", description=__doc__)
    parser.add_argument("--model", default="bundled", help="bundled, a folder or a hub id")
    parser.add_argument("--repetitions", type=int, default=5, help="swaps measured in each case")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[0, 8], help="numbers of running requests")
    parser.add_argument("--tokens-before", type=int, default=16, help="tokens each request has sampled when the swap comes")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: all cores")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every case; the table goes to stderr, the figures as JSON to stdout. Returns the exit status."""
    arguments = _arguments(argv)
    model_path = obtain(arguments.model, PolicySettings().cache_dir)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        adapters = [write_random_adapter(model_path, Path(scratch) / f"v{seed}", seed=seed, size=0.001, rank=16) for seed in (1, 2)]
        for kv_policy in KV_POLICIES:
            for in_flight in arguments.in_flight:
                results.append(
                    asyncio.run(
                        measure(
                            model_path,
                            adapters,
                            kv_policy=kv_policy,
                            in_flight=in_flight,
                            repetitions=arguments.repetitions,
                            tokens_before=arguments.tokens_before,
                            threads=arguments.threads,
                        )
                    )
                )
    Console(stderr=True).print(_table(results))
    print(json.dumps({"benchmark": "swap", "model": arguments.model, "threads": arguments.threads or os.cpu_count(), "results": results}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
