"""How near the embedded engine decodes to what this machine's memory allows: its tokens per second, alone and in company, against the time to read
every weight once a step. The engine in this process; no HTTP, database or learner. Run with `python -m online_sao.benchmarks.decode`.

Three times for one step of R requests, each with more in it than the one before:

    floor      bytes of weights (and of the keys and values attended to) / measured read bandwidth; or, where more, its FLOP / measured matmul rate
    products   the model's own matrix products at R rows, one after the other, and nothing else: what torch makes of the floor
    step       the engine's median time from token to token, all R requests running
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch.nn import functional
from transformers import PreTrainedModel

from online_sao.benchmarks.measured import environment, measured, time_by_kind
from online_sao.benchmarks.peak import matmul_peak, median_seconds, read_bandwidth
from online_sao.benchmarks.report_files import write_result
from online_sao.config import EngineSettings, PolicySettings
from online_sao.inference.engine import EngineRequest
from online_sao.inference.renderer import Renderer
from online_sao.inference.transformers_engine import TransformersEngine
from online_sao.models.catalog import load_model, obtain
from online_sao.models.projections import find_projections
from online_sao.simulation.prompts import TRAINING

console = Console(stderr=True, highlight=False)
BANDWIDTH_MEGABYTES = 512
"""Read to measure the bandwidth: about the bundled model, far beyond most caches."""


def weight_matrices(model: PreTrainedModel) -> list[torch.Tensor]:
    """The matrices [out, in] that every step reads whole: those of the blocks, and the output matrix."""
    return [*(model.get_submodule(name).weight for name in find_projections(model).names), model.get_output_embeddings().weight]


def kv_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Keys and values of ``tokens`` cached tokens, fp32."""
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * 4 * config.num_hidden_layers * heads * width * tokens)


def floor_seconds(weights: int, kv: int, flops: float, bandwidth: float, rate: float) -> dict[str, float]:
    """``weights`` and ``kv`` in bytes, ``bandwidth`` in bytes/s, ``rate`` in FLOP/s."""
    memory, compute = (weights + kv) / bandwidth, flops / rate
    return {"memory": memory, "compute": compute, "seconds": max(memory, compute)}


def limits(model: PreTrainedModel, requests: int, context: int, megabytes: int) -> dict[str, Any]:
    """The floor and the products alone for a step of ``requests``, each with ``context`` tokens cached."""
    matrices = weight_matrices(model)
    bandwidth = read_bandwidth(megabytes)
    rate = matmul_peak(requests, [(matrix.shape[1], matrix.shape[0]) for matrix in matrices[:-1]]) if requests > 1 else float("inf")
    numbers = sum(matrix.numel() for matrix in matrices)
    inputs = [torch.randn(requests, matrix.shape[1]) for matrix in matrices]
    with torch.no_grad():
        plain = median_seconds(lambda: [functional.linear(x, matrix) for x, matrix in zip(inputs, matrices, strict=True)], 5)
    return {
        "weight_bytes": 4 * numbers,
        "kv_bytes": kv_bytes(model, requests * context),
        "bandwidth": bandwidth,
        "floor": floor_seconds(4 * numbers, kv_bytes(model, requests * context), 2.0 * numbers * requests, bandwidth, rate),
        "products_seconds": plain,
        "packed_products_seconds": _packed_seconds(inputs, matrices),
    }


def _packed_seconds(inputs: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor]) -> float | None:
    """As ``products``, with the weights in oneDNN's blocked layout (which a swap would have to make anew). None where torch is built without it."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    operators = torch.ops.mkldnn
    packed = [operators._reorder_linear_weight(matrix.detach(), len(x)) for x, matrix in zip(inputs, matrices, strict=True)]
    pairs = list(zip(inputs, packed, strict=True))
    with torch.no_grad():
        return median_seconds(lambda: [operators._linear_pointwise(x, weight, None, "none", [], "") for x, weight in pairs], 5)


class _Clock:
    """Time spent in some functions, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        inner = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        setattr(owner, attribute, timed)


async def decode(settings: EngineSettings, model_path: Path, requests: int, tokens: int, repetitions: int) -> dict[str, Any]:
    """Bursts of ``requests`` answers of ``tokens`` tokens each. Steps count from the last one's first token to the first one's last."""
    renderer = Renderer.from_model(model_path)
    prompts = [renderer.render([{"role": "user", "content": prompt}]) for prompt in TRAINING]
    engine = TransformersEngine(settings, model_path)
    await engine.start(0, None)
    gaps: list[list[float]] = []
    shares: list[dict[str, float]] = []
    numbers = itertools.count()
    try:
        with _clock(engine) as clock:
            for turn in track(range(repetitions + 1), f"{requests} at once", console=console):
                clock.seconds.clear()
                began = time.perf_counter()
                times = await asyncio.gather(*(_answer(engine, prompts, next(numbers), tokens) for _ in range(requests)))
                whole = time.perf_counter() - began
                if turn:
                    gaps.append(_steps(times))
                    shares.append({name: seconds / whole for name, seconds in clock.seconds.items()})
            with time_by_kind(all_threads=True) as kinds:
                await asyncio.gather(*(_answer(engine, prompts, next(numbers), tokens) for _ in range(requests)))
    finally:
        await engine.stop()
    steps = [statistics.median(found) for found in gaps]
    return {
        "requests": requests,
        "threads": torch.get_num_threads(),
        "step_seconds": measured(steps),
        "tokens_per_second": measured([requests / step for step in steps]),
        "shares": {name: statistics.median(share.get(name, 0.0) for share in shares) for name in ("model", "sampling")},
        "time_by_kind": kinds,
        "context": statistics.fmean(map(len, prompts)) + tokens / 2,
    }


@contextmanager
def _clock(engine: TransformersEngine) -> Iterator[_Clock]:
    """Of the model's forward pass and of sampling, inside a started engine. What is left of a step is scheduling, cache indices and delivery."""
    clock = _Clock()
    serving = engine._serving
    assert serving is not None
    clock.wrap(serving.model, "forward", "model")
    clock.wrap(serving.manager.batch_processor.model_runner, "_sample", "sampling")
    yield clock


async def _answer(engine: TransformersEngine, prompts: Sequence[tuple[int, ...]], number: int, tokens: int) -> list[float]:
    """When each token came."""
    times = []
    request = EngineRequest(str(number), prompts[number % len(prompts)], tokens, 1.0, 1.0, ())
    async with aclosing(engine.generate(request)) as deltas:
        async for delta in deltas:
            times += [time.perf_counter()] * len(delta.token_ids)
    return times


def _steps(times: Sequence[Sequence[float]]) -> list[float]:
    """Gaps between tokens of the same answer while all of them run."""
    began, ended = max(found[0] for found in times), min(found[-1] for found in times)
    return [later - sooner for found in times for sooner, later in itertools.pairwise(found) if sooner >= began and later <= ended]


def report(result: dict[str, Any]) -> str:
    lines = [
        "# Decode",
        "",
        f"Model {result['model']}, fp32, torch {result['environment']['torch']}, {result['environment']['cpus']} cores. Milliseconds a step; "
        "tokens/s as median (lowest to highest). Packed: the same products with weights in oneDNN's layout.",
        "",
        "| threads | at once | tokens/s | step | floor | products | packed | step / floor | step / products | in the model | sampling | the rest |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in result["cases"]:
        step, rate, limit, shares = case["step_seconds"]["median"], case["tokens_per_second"], case["limits"], case["shares"]
        floor, packed = limit["floor"]["seconds"], limit["packed_products_seconds"]
        cells = [
            str(case["threads"]),
            str(case["requests"]),
            f"{rate['median']:.1f} ({rate['low']:.1f}–{rate['high']:.1f})",
            *(f"{1000 * seconds:.1f}" for seconds in (step, floor, limit["products_seconds"])),
            "–" if packed is None else f"{1000 * packed:.1f}",
            f"{step / floor:.2f}",
            f"{step / limit['products_seconds']:.2f}",
            *(f"{100 * share:.0f} %" for share in (shares["model"], shares["sampling"], 1 - shares["model"] - shares["sampling"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    kinds = list(result["cases"][0]["time_by_kind"])
    lines += ["", f"| threads | at once | operator time: {' | '.join(kinds)} |", f"|---|---|{'---|' * len(kinds)}"]
    for case in result["cases"]:
        shown = (f"{100 * case['time_by_kind'][kind]:.0f} %" for kind in kinds)
        lines.append(f"| {case['threads']} | {case['requests']} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="decode", description=__doc__)
    parser.add_argument("--model", default="bundled", help="bundled, a folder or a hub id")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16], help="answers running at once")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--repetitions", type=int, default=5, help="measured bursts of each case")
    parser.add_argument("--threads", type=int, nargs="+", default=[0], help="torch threads; several are compared; 0: all cores")
    parser.add_argument("--bandwidth-megabytes", type=int, default=BANDWIDTH_MEGABYTES, help="memory read to measure the bandwidth")
    parser.add_argument("--out", type=Path, default=Path("decode-bench"), help="folder of decode.json and report.md")
    parser.add_argument("--report-only", action="store_true", help="make the report anew from decode.json")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every case, write them as JSON, then the report."""
    arguments = _arguments(argv)
    path = arguments.out / "decode.json"
    if not arguments.report_only:
        model_path = obtain(arguments.model, PolicySettings().cache_dir)
        cases = []
        for threads, requests in itertools.product(arguments.threads, arguments.requests):
            torch.set_num_threads(threads or os.cpu_count() or 1)  # the limits are those of as many threads as the engine takes
            settings = EngineSettings(threads=threads, max_concurrent=max(requests, 1))
            case = asyncio.run(decode(settings, model_path, requests, arguments.tokens, arguments.repetitions))
            case["limits"] = limits(load_model(model_path), requests, round(case["context"]), arguments.bandwidth_megabytes)
            cases.append(case)
            result = {"benchmark": "decode", "format": 1, "model": arguments.model, "environment": environment(), "cases": cases}
            write_result(path, result, indent=1)  # after each: who is interrupted keeps what was measured
    elif not path.exists():
        console.print(f"There is no {path}.", style="red")
        return 1
    written = arguments.out / "report.md"
    written.write_text(report(json.loads(path.read_text())))
    console.print(f"wrote {written}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
