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
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from online_sao.algorithm.recipes import Preset
from online_sao.benchmarks.stability.claims import RECIPES
from online_sao.benchmarks.stability.report import write_report
from online_sao.benchmarks.stability.summary import summarise
from online_sao.benchmarks.stability.tasks import TASKS
from online_sao.benchmarks.stability.training import RunOptions, run
from online_sao.benchmarks.tiny_policy.lab import Lab
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart, obtain

LAGS = (0, 1, 4, 16)


def _outcome(summary: Mapping[str, Any]) -> str:
    collapsed = "no collapse" if summary["collapse_update"] is None else f"[red]collapsed at {summary['collapse_update']}[/red]"
    return f"held out {summary['held_out_before']:.2f} → {summary['held_out_after']:.2f}, best {summary['best_success']:.2f}, {collapsed}"


LAB: Lab[RunOptions] = Lab(
    name="stability",
    named_by=("task", "recipe", "lag", "seed"),
    prepare=lambda options, cache, progress: obtain(TASKS[options.task], options.seed, options.warm_start, cache, progress),
    file_name=lambda options: f"{options.task}-{options.recipe}-lag{options.lag}",
    length=lambda options: options.updates,
    run=run,
    note=lambda right: f"{right:.0%} right",
    summarise=summarise,
    outcome=_outcome,
    write_report=write_report,
)


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
    """As ``Lab.main``."""
    arguments = _arguments(argv)
    return LAB.main(arguments.planned, arguments, sys.argv[1:] if argv is None else argv)
