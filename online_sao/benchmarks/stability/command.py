"""Which recipes learn, and which collapse, when the policy that samples lags behind the one that is trained? Hundreds of updates of a transformer
of a million parameters, for every task, recipe, lag and seed, from the same questions and warm starts.

Each run is a file under OUT/runs, so that a call that was interrupted goes on where it was; report.md and plots are made from all of them. Two calls
with different seeds can share a folder. Run with `python -m online_sao.benchmarks.stability`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import itertools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console
from rich.progress import Progress

from online_sao.algorithm.recipes import Preset
from online_sao.benchmarks.environment import environment
from online_sao.benchmarks.report_files import write_result
from online_sao.benchmarks.stability.claims import RECIPES
from online_sao.benchmarks.stability.report import write_report
from online_sao.benchmarks.stability.summary import summarise
from online_sao.benchmarks.stability.tasks import TASKS
from online_sao.benchmarks.stability.training import RunOptions, run
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.run_files import recipe_numbers, report_all, run_all
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart

LAGS = (0, 1, 4, 16)
console = Console(stderr=True, highlight=False)


def run_file(out: Path, options: RunOptions) -> Path:
    return out / "runs" / f"{options.task}-{options.recipe}-lag{options.lag}-seed{options.seed}.json"


def _identity(options: RunOptions) -> dict[str, Any]:
    """What a run is the run of: with another one of these, a file of the same name is not it."""
    return {"options": asdict(options), "recipe_numbers": recipe_numbers(options.build_recipe())}


def _run_one(options: RunOptions, out: Path, command: str, progress: Progress) -> None:
    numbers = options.warm_start
    bar = progress.add_task(f"{options.task} seed {options.seed}: warm start", total=numbers.max_steps, note="")
    base, about = warm_start.obtain(
        TASKS[options.task],
        options.seed,
        numbers,
        out / "warm-starts",
        lambda step, most, right: progress.update(bar, completed=step, note=f"{right:.0%} right"),
    )
    progress.reset(bar, total=options.updates, description=options.title, note=f"{about['success_rate']:.0%} right")
    result: dict[str, Any] = {
        "benchmark": "stability",
        "format": 1,
        **{name: getattr(options, name) for name in ("task", "recipe", "lag", "seed")},
        **_identity(options),
        "warm_start": about,
        "threads": torch.get_num_threads(),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **run(options, base, lambda update, right: progress.update(bar, completed=update, note=f"{right:.0%} right")),
        "environment": environment(),
    }
    result["summary"] = summary = summarise(result)
    write_result(run_file(out, options), result)
    progress.remove_task(bar)
    collapsed = "no collapse" if summary["collapse_update"] is None else f"[red]collapsed at {summary['collapse_update']}[/red]"
    success = f"held out {summary['held_out_before']:.2f} → {summary['held_out_after']:.2f}, best {summary['best_success']:.2f}"
    progress.console.print(f"{options.title}: {success}, {collapsed}, {result['seconds']['total']:.0f} s")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = {item.name: item.default for item in fields(RunOptions)}
    parser = argparse.ArgumentParser(prog="stability", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tasks", choices=tuple(TASKS), nargs="+", default=list(TASKS), help="one turn, and several with a tool")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), metavar="RECIPE", help="what is compared (algorithm/recipes.py)")
    parser.add_argument("--lags", type=int, nargs="+", default=list(LAGS), help="updates between a rollout's first token and its use")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="each with a warm start and questions of its own")
    parser.add_argument("--updates", type=int, default=defaults["updates"], help="updates of a run")
    parser.add_argument("--preset", choices=get_args(Preset), default=defaults["preset"], help="whose numbers, but for rates, batch and anchor")
    parser.add_argument("--policy-learning-rate", type=float, default=defaults["policy_learning_rate"], help="of every recipe")
    parser.add_argument("--value-learning-rate", type=float, default=defaults["value_learning_rate"], help="of every recipe")
    parser.add_argument("--batch-size", type=int, default=defaults["batch_size"], help="trajectories of an update")
    parser.add_argument(
        "--group-size",
        type=int,
        default=defaults["group_size"],
        help="answers to each question; 1 is the live case, in which recipes that compare the answers of a group cannot learn",
    )
    parser.add_argument("--mixed", type=float, default=defaults["mixed"], help="part of the updates whose rollouts meet a swap, at lags above 0")
    parser.add_argument("--held-out", type=int, default=defaults["held_out"], help="questions asked of the first and the last policy")
    parser.add_argument("--warm-start-steps", type=int, default=WarmStart().max_steps, help="supervised steps at most")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: all cores")
    parser.add_argument("--out", type=Path, default=Path("stability"), help="folder of runs, warm starts, report.md and plots")
    parser.add_argument("--report-only", action="store_true", help="make report and plots anew from the runs that are there")
    arguments = parser.parse_args(argv)
    try:
        arguments.planned = [] if arguments.report_only else _plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _plan(arguments: argparse.Namespace) -> list[RunOptions]:
    """Every run asked for, one seed after the other, so that an interrupted call leaves whole comparisons. Raises ValueError for what cannot be."""
    shared = {item.name: getattr(arguments, item.name) for item in fields(RunOptions) if hasattr(arguments, item.name)}
    shared["warm_start"] = WarmStart(max_steps=arguments.warm_start_steps)
    every = itertools.product(arguments.seeds, arguments.tasks, arguments.lags, arguments.recipes)
    return [RunOptions(task=task, recipe=recipe, lag=lag, seed=seed, **shared) for seed, task, lag, recipe in every]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what has no file yet, then write the report over all files. Returns the exit status: 1 where there is none, or one is of other options."""
    arguments = _arguments(argv)
    torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
    words = shlex.join(["online-sao", "bench", "stability", *(sys.argv[1:] if argv is None else argv)])
    fine = arguments.report_only or run_all(
        arguments.planned,
        lambda options: run_file(arguments.out, options),
        _identity,
        lambda options, progress: _run_one(options, arguments.out, words, progress),
        console,
    )
    return 0 if report_all(arguments.out, write_report, console) and fine else 1
