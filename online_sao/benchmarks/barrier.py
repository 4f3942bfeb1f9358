"""What a barrier costs: rollouts of long-tailed lengths under synchronous batches, asynchronous groups of 8, and single rollouts.

Simulated for up to 10,000 workers (barrier_model.py), and run for real on this machine with the embedded engine and the real learner, beside what
the same model predicts from the paces measured there (barrier_run.py). Run with `python -m online_sao.benchmarks.barrier`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from online_sao.benchmarks.barrier_model import GROUP, Constant, Plan, Schedule, figures, lognormal, over_seeds, simulate
from online_sao.benchmarks.barrier_report import write_report
from online_sao.benchmarks.environment import environment
from online_sao.benchmarks.report_files import write_result
from online_sao.errors import ConfigurationError

PARTS = ("model", "real")
console = Console(stderr=True, highlight=False)


def model_file(out: Path, variation: float, workers: int) -> Path:
    return out / f"model-cv{variation:g}-{workers}.json"


def model_cell(settings: dict[str, Any], variation: float, workers: int) -> dict[str, Any]:
    """All schedules at one size: a batch has one rollout of each worker, so that what a worker does stays the same as their number grows."""

    def one(schedule: Schedule, seed: int) -> dict[str, float]:
        lengths = lognormal(np.random.default_rng(seed), 1.0, variation)
        pace = Constant(settings["mean_seconds"], settings["update_time"] * settings["mean_seconds"])
        # Few workers make few rollouts an update, and their figures would be mostly chance.
        updates = settings["warmup"] + max(settings["updates"], settings["rollouts"] // workers)
        trace = simulate(Plan(schedule, workers, workers, updates), lengths, pace)
        return figures(trace, settings["warmup"])

    found = {schedule.value: over_seeds(partial(one, schedule), settings["seeds"]) for schedule in Schedule}
    return {"benchmark": "barrier", "part": "model", "settings": settings, "variation": variation, "workers": workers, "schedules": found}


def run_model(arguments: argparse.Namespace) -> None:
    """Every cell that has no file yet. Raises ConfigurationError for one that was made otherwise."""
    settings = {name: getattr(arguments, name) for name in ("mean_seconds", "update_time", "updates", "rollouts", "warmup", "seeds")}
    cells = [(variation, workers) for workers in arguments.workers for variation in arguments.variations]
    for variation, workers in track(cells, "Simulating", console=console):
        path = model_file(arguments.out, variation, workers)
        if path.exists():
            if json.loads(path.read_text())["settings"] != settings:
                raise ConfigurationError(f"{path} was made with other settings: name another --out, or remove it.")
            continue
        write_result(path, model_cell(settings, variation, workers), indent=1)


async def run_real(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Every schedule at every variation on this machine, each beside its prediction from the same lengths and from the mean of the paces measured
    before all of them and after."""
    from online_sao.benchmarks.barrier_run import between, measure_pace, run, service
    from online_sao.benchmarks.tiny_model import model_folder

    workers, batch, mean = arguments.real_workers, arguments.real_batch, arguments.real_tokens
    cases = [(variation, schedule) for variation in arguments.variations for schedule in Schedule]
    plans = [
        Plan(schedule, workers, batch, arguments.real_warmup + arguments.real_updates, ahead=arguments.real_ahead * batch) for _, schedule in cases
    ]
    async with service(model_folder(arguments.model), scratch, workers=workers, threads=arguments.threads) as running:
        longest = running.longest
        with console.status("Measuring the paces of engine and learner"):
            before = await measure_pace(running, workers=workers, batch=batch, mean=mean)
        measured = [
            await run(running, plan, _tokens(variation, mean, longest))
            for plan, (variation, _) in zip(track(plans, "Running", console=console), cases, strict=True)
        ]
        with console.status("Measuring the paces again"):
            after = await measure_pace(running, workers=workers, batch=batch, mean=mean)
    pace = between(before, after)
    runs = []
    for (variation, schedule), plan, trace in zip(cases, plans, measured, strict=True):
        predicted = simulate(plan, (length + pace.start_tokens for length in _tokens(variation, mean, longest)), pace)
        both = {"predicted": figures(predicted, arguments.real_warmup), "measured": figures(trace, arguments.real_warmup)}
        runs.append({"variation": variation, "schedule": schedule.value, **both})
    names = ("model", "threads", "real_workers", "real_batch", "real_tokens", "real_updates", "real_warmup", "real_ahead")
    return {
        "benchmark": "barrier",
        "part": "real",
        "settings": {name: getattr(arguments, name) for name in names},
        "environment": environment(),
        "pace": {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)},
        "drift": {
            "token": after.generation(workers, True) / before.generation(workers, True),
            "update": after.update(batch * mean, True) / before.update(batch * mean, True),
        },
        "runs": runs,
    }


def _tokens(variation: float, mean: int, longest: int) -> Iterator[float]:
    """Lengths in whole tokens, at least 1; the same at every call."""
    for length in lognormal(np.random.default_rng(0), mean, variation):
        yield float(min(max(1, round(length)), longest))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="barrier", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is run")
    parser.add_argument("--variations", type=float, nargs="+", default=[1.0, 2.0], help="coefficients of variation of the lengths")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 32, 128, 512, 2048, 10_000], help=f"simulated workers, multiples of {GROUP}")
    parser.add_argument("--updates", type=int, default=40, help="simulated updates measured at least …")
    parser.add_argument("--rollouts", type=int, default=8000, help="… and rollouts used in them at least")
    parser.add_argument("--warmup", type=int, default=20, help="simulated updates before them, left out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--mean-seconds", type=float, default=60.0, help="a simulated rollout on average")
    parser.add_argument("--update-time", type=float, default=0.5, help="a simulated update, in mean rollouts")
    parser.add_argument("--model", default="tiny", help="of the real run: tiny (random weights, a second to load), bundled, a folder or a hub id")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of engine and of learner in the real run")
    parser.add_argument("--real-workers", type=int, default=8, help="completions at once in the real run")
    parser.add_argument("--real-batch", type=int, default=16, help=f"rollouts of a real update, a multiple of {GROUP}")
    parser.add_argument("--real-tokens", type=int, default=32, help="mean length of a real rollout")
    parser.add_argument("--real-updates", type=int, default=20, help="real updates measured in each run")
    parser.add_argument("--real-warmup", type=int, default=4, help="real updates before them, left out")
    parser.add_argument("--real-ahead", type=int, default=4, help="most batches begun and not yet used: a learner that is slower sets the pace")
    parser.add_argument("--out", type=Path, default=Path("barrier"), help="folder of the figures (JSON), report.md and barrier.png")
    parser.add_argument("--report-only", action="store_true", help="make report and plot anew from the figures that are there")
    arguments = parser.parse_args(argv)
    if any(count < GROUP or count % GROUP for count in (*arguments.workers, arguments.real_batch)):
        parser.error(f"--workers and --real-batch must be multiples of {GROUP}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run what has no file yet, then write the report. Returns the exit status."""
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.report_only:
        if "model" in arguments.parts:
            run_model(arguments)
        if "real" in arguments.parts and not (arguments.out / "real.json").exists():
            with tempfile.TemporaryDirectory() as scratch:
                write_result(arguments.out / "real.json", asyncio.run(run_real(arguments, Path(scratch))), indent=1)
    cells = sorted(
        (json.loads(path.read_text()) for path in arguments.out.glob("model-*.json")), key=lambda cell: (cell["variation"], cell["workers"])
    )
    real = arguments.out / "real.json"
    if not cells and not real.exists():
        console.print(f"There are no figures in {arguments.out}.", style="red")
        return 1
    for path in write_report(cells, json.loads(real.read_text()) if real.exists() else None, arguments.out):
        console.print(f"wrote {path}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
