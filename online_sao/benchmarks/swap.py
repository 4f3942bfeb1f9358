"""What a swap costs those who are being answered: how long they wait for a token beyond the usual, beside the least it could be. An engine in this
process under clients that ask again and again; nothing of HTTP, database or learner takes part. Run with `python -m online_sao.benchmarks.swap`.

The floor: the time to merge an adapter into every matrix, and to compute again the keys and values that are thrown away at the engine's own prefill
rate. Versions served beside each other have nothing to merge: their floor is 0.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from online_sao.benchmarks.random_adapter import write_random_adapter
from online_sao.config import EngineSettings, PolicySettings
from online_sao.inference.engine import EngineRequest, InferenceEngine, SwapReport
from online_sao.inference.engines import build_engine
from online_sao.inference.renderer import Renderer
from online_sao.models.adapter import MergedWeights, read_adapter
from online_sao.models.catalog import load_model, obtain
from online_sao.simulation.prompts import TRAINING

console = Console(stderr=True, highlight=False)
RANK = 16
PREFILL_TOKENS = 384
CASES: dict[str, dict[str, Any]] = {
    "embedded, keep": {"kind": "transformers", "kv_policy": "keep"},
    "embedded, recompute": {"kind": "transformers", "kv_policy": "recompute"},
    "vllm weights, keep": {"kind": "vllm", "publish": "weights", "kv_policy": "keep"},
    "vllm weights, recompute": {"kind": "vllm", "publish": "weights", "kv_policy": "recompute"},
    "vllm adapter": {"kind": "vllm", "publish": "adapter"},
}


@dataclass(slots=True)
class _Clients:
    """``gaps``: (from, to) of two tokens that came one after the other to the same request, by time.perf_counter."""

    engine: InferenceEngine
    prompts: Sequence[tuple[int, ...]]
    max_tokens: int
    gaps: list[tuple[float, float]] = field(default_factory=list)
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    ending: bool = False

    async def run(self, number: int) -> None:
        """Asks again and again until ``ending``. Answers begin at different times: the first ones are cut short by turns."""
        asked = 0
        while not self.ending:
            prompt = self.prompts[(number + asked * 7) % len(self.prompts)]
            tokens = self.max_tokens if asked else 2 + number * self.max_tokens // 8 % self.max_tokens
            asked += 1
            try:
                await self._ask(EngineRequest(f"{number}-{asked}", prompt, tokens, 1.0, 1.0, ()))
                self.answered += 1
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    async def _ask(self, request: EngineRequest) -> None:
        before: float | None = None
        async with aclosing(self.engine.generate(request)) as deltas:  # type: ignore[type-var]
            async for _ in deltas:
                now = time.perf_counter()
                if before is not None:
                    self.gaps.append((before, now))
                before = now


@dataclass(frozen=True, slots=True)
class _Swap:
    """``longest``: the longest gap that reaches into the swap. In seconds."""

    report: SwapReport
    longest: float
    floor: float


async def measure(
    engine: InferenceEngine, prompts: Sequence[tuple[int, ...]], adapters: Sequence[Path], arguments: argparse.Namespace
) -> dict[str, Any]:
    """``arguments.swaps`` swaps under ``arguments.clients`` clients, the engine started and ended here."""
    await engine.start(0, None)
    try:
        rate = await _prefill_rate(engine, prompts)
        await engine.swap(1, adapters[1])  # the first swap touches what the later ones find ready
        beside = engine.serves_pinned
        merge = 0.0 if beside else _merge_seconds(arguments.model_path, adapters, arguments.threads)
        clients = _Clients(engine, prompts, arguments.max_tokens)
        tasks = [asyncio.create_task(clients.run(number)) for number in range(arguments.clients)]
        swaps, usual = await _swaps(clients, adapters, arguments, merge, rate)
        clients.ending = True
        await asyncio.gather(*tasks)
    finally:
        await engine.stop()
    beyond = [swap.longest - usual - swap.floor for swap in swaps]
    return {
        "swaps": len(swaps),
        "clients": arguments.clients,
        "answered": clients.answered,
        "failed": len(clients.failures),
        "failures": clients.failures[:5],
        "in_flight": statistics.median(swap.report.requests_in_flight for swap in swaps),
        "recomputed_tokens": statistics.median(swap.report.recomputed_tokens for swap in swaps),
        "prefill_tokens_per_second": round(rate, 1),
        "usual_gap": round(usual, 4),
        "pause": _spread([swap.report.pause_seconds for swap in swaps]),
        "whole": _spread([swap.report.total_seconds for swap in swaps]),
        "stall": _spread([swap.longest - usual for swap in swaps]),
        "floor": _spread([swap.floor for swap in swaps]),
        "beyond_floor": _spread(beyond),
    }


async def _swaps(clients: _Clients, adapters: Sequence[Path], arguments: argparse.Namespace, merge: float, rate: float) -> tuple[list[_Swap], float]:
    """The swaps, and the usual gap: the median of those that no swap was near."""
    swaps, quiet = [], []
    for number in track(range(arguments.swaps), "Swaps", console=console):
        await asyncio.sleep(arguments.pause)
        quiet += [end - start for start, end in clients.gaps]
        clients.gaps.clear()
        began = time.perf_counter()
        report = await clients.engine.swap(number + 2, adapters[number % len(adapters)])
        ended = time.perf_counter()
        await asyncio.sleep(arguments.settle)
        longest = max((end - start for start, end in clients.gaps if end > began and start < ended), default=0.0)
        swaps.append(_Swap(report, longest, merge + report.recomputed_tokens / rate))
        clients.gaps.clear()
    return swaps, statistics.median(quiet or [0.0])


async def _prefill_rate(engine: InferenceEngine, prompts: Sequence[tuple[int, ...]]) -> float:
    """Prompt tokens a second, one request alone: the difference that PREFILL_TOKENS more of them make."""
    every = [token for prompt in prompts for token in prompt]
    seconds: dict[int, list[float]] = {}
    for turn in range(5):
        for length in (16, 16 + PREFILL_TOKENS):
            # Another start each time: what is cached is not computed.
            request = EngineRequest(f"prefill-{turn}", (every[41 * turn], *every[:length]), 1, 1.0, 1.0, ())
            began = time.perf_counter()
            async with aclosing(engine.generate(request)) as deltas:  # type: ignore[type-var]
                async for _ in deltas:
                    pass
            seconds.setdefault(length, []).append(time.perf_counter() - began)
    short, long = (statistics.median(seconds[length][1:]) for length in sorted(seconds))
    return PREFILL_TOKENS / (long - short)


def _merge_seconds(model_path: Path, adapters: Sequence[Path], threads: int) -> float:
    """Median of merging an adapter into every matrix in place, with as many threads as the engine."""
    import torch

    torch.set_num_threads(threads or os.cpu_count() or 1)
    weights = MergedWeights(load_model(model_path))
    read = [read_adapter(adapter) for adapter in adapters]
    seconds = []
    for turn in range(6):
        began = time.perf_counter()
        weights.apply(read[turn % len(read)])
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _spread(values: Sequence[float]) -> dict[str, float]:
    ranked = sorted(values)
    return {"median": round(statistics.median(ranked), 4), "p95": round(ranked[int(0.95 * (len(ranked) - 1))], 4), "max": round(ranked[-1], 4)}


def _table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Swaps: median (95 %, largest) seconds. Stall: longest wait for a token, less the usual one")
    for heading in ("", "swaps", "failed", "in flight", "pause", "stall", "floor", "stall - floor", "usual wait"):
        table.add_column(heading, justify="left" if not heading else "right")
    for result in results:
        shown = [f"{s['median']:.2f} ({s['p95']:.2f}, {s['max']:.2f})" for s in (result[key] for key in ("pause", "stall", "floor", "beyond_floor"))]
        failed = f"{result['failed']} of {result['answered'] + result['failed']}"
        table.add_row(result["case"], str(result["swaps"]), failed, f"{result['in_flight']:.0f}", *shown, f"{result['usual_gap']:.3f}")
    return table


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="swap", description=__doc__)
    parser.add_argument("--model", default="bundled", help="bundled, a folder or a hub id")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES)[:2], metavar="CASE", help=", ".join(map(repr, CASES)))
    parser.add_argument("--swaps", type=int, default=20, help="swaps measured in each case")
    parser.add_argument("--clients", type=int, default=8, help="requests running at once")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds of undisturbed decoding before each swap")
    parser.add_argument("--settle", type=float, default=1.0, help="seconds after a swap in which its stall ends")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: all cores")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every case; the table goes to stderr, the figures as JSON to stdout. Returns the exit status: 1 if any request failed."""
    arguments = _arguments(argv)
    arguments.model_path = obtain(arguments.model, PolicySettings().cache_dir)
    renderer = Renderer.from_model(arguments.model_path)
    prompts = [renderer.render([{"role": "user", "content": prompt}]) for prompt in TRAINING]
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        adapters = [write_random_adapter(arguments.model_path, Path(scratch) / f"v{seed}", seed=seed, size=0.001, rank=RANK) for seed in (1, 2, 3)]
        for case in arguments.cases:
            engine = build_engine(EngineSettings(threads=arguments.threads, **CASES[case]), arguments.model_path, RANK)
            results.append({"case": case, **asyncio.run(measure(engine, prompts, adapters, arguments))})
    console.print(_table(results))
    print(json.dumps({"benchmark": "swap", "model": arguments.model, "threads": arguments.threads or os.cpu_count(), "results": results}, indent=2))
    return 1 if any(result["failed"] for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
