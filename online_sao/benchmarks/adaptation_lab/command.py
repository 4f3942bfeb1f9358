"""How fast does a recipe follow when what people want shifts, and is its critic worth its cost? A live stream of scored answers, each used once, on a
transformer of a million parameters: a run takes a minute or two, so that recipes can be compared over many seeds.

Each run is a file under OUT/runs, so that a call that was interrupted goes on where it was; report.md and plots are made from all of them. Two calls
with different seeds can share a folder. Run with `python -m online_sao.benchmarks.adaptation_lab`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from online_sao.benchmarks import trl_grpo
from online_sao.benchmarks.adaptation_lab import kto
from online_sao.benchmarks.adaptation_lab.answers import ANSWERS, SCALES
from online_sao.benchmarks.adaptation_lab.options import RunOptions
from online_sao.benchmarks.adaptation_lab.report import write_report
from online_sao.benchmarks.adaptation_lab.stream import NAMES, POPULATIONS
from online_sao.benchmarks.adaptation_lab.summary import summarise
from online_sao.benchmarks.adaptation_lab.training import interactions_of, run
from online_sao.benchmarks.environment import environment
from online_sao.benchmarks.report_files import write_result
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.run_files import report_all, run_all

RECIPES = ("sao", "sao/paper", "running-mean", "ema", "batch-mean")
console = Console(stderr=True, highlight=False)


def run_file(out: Path, options: RunOptions) -> Path:
    recipe = re.sub("[/:=]", "-", options.recipe)
    return out / "runs" / f"{options.population}-{options.names}-{options.scale}-{recipe}-seed{options.seed}.json"


def _identity(options: RunOptions) -> dict[str, Any]:
    """What a run is the run of: with another one of these, a file of the same name is not it."""
    return {"options": asdict(options), "recipe_numbers": options.numbers()}


def _run_one(options: RunOptions, out: Path, command: str, progress: Progress) -> None:
    bar = progress.add_task(f"seed {options.seed}: warm start", total=options.warm_start.max_steps, note="")
    base, about = warm_start.obtain(
        ANSWERS,
        options.seed,
        options.warm_start,
        out / "warm-starts",
        lambda step, most, right: progress.update(bar, completed=step, note=f"{right:.0%} please"),
    )
    progress.reset(bar, total=interactions_of(options), description=options.title, note="")
    result: dict[str, Any] = {
        "benchmark": "adaptation-lab",
        "format": 1,
        **{name: getattr(options, name) for name in ("recipe", "population", "names", "scale", "seed")},
        **_identity(options),
        "warm_start": about,
        "threads": torch.get_num_threads(),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **run(options, base, lambda done, score: progress.update(bar, completed=done, note=f"score {score:.2f}")),
        "environment": environment(),
    }
    result["summary"] = summary = summarise(result)
    write_result(run_file(out, options), result)
    progress.remove_task(bar)
    lasts = " → ".join(f"{phase['final']:.2f}" for phase in summary["phases"])
    recovered = ", ".join(str(phase["recovery"] or f">{phase['interactions']}") for phase in summary["phases"][1:])
    progress.console.print(f"{options.title}: {lasts}; recovered after {recovered}; {result['seconds']['total']:.0f} s")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = {item.name: item.default for item in fields(RunOptions)}
    parser = argparse.ArgumentParser(prog="adaptation-lab", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=list(RECIPES),
        metavar="RECIPE",
        help="NAME or NAME/PRESET, then :NUMBER=VALUE; kto: TRL's KTO trainer; oracle: a critic that knows",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="each with a warm start and prompts of its own")
    parser.add_argument("--populations", choices=POPULATIONS, nargs="+", default=list(POPULATIONS), help="all want the same, or it depends")
    parser.add_argument("--names", choices=NAMES, nargs="+", default=["unnamed"], help="whether prompts name the styles there are")
    parser.add_argument("--scales", choices=SCALES, nargs="+", default=["binary"], help="scores of 0 and 1, or in steps")
    parser.add_argument("--phase-interactions", type=int, default=defaults["phase_interactions"], help="of each of the three phases")
    parser.add_argument("--lag", type=int, default=defaults["lag"], help="updates that the policy which answers is behind")
    parser.add_argument("--batch-size", type=int, default=defaults["batch_size"], help="scored answers of an update")
    parser.add_argument("--policy-learning-rate", type=float, default=defaults["policy_learning_rate"], help="of every recipe")
    parser.add_argument("--value-learning-rate", type=float, default=defaults["value_learning_rate"], help="of every recipe")
    parser.add_argument("--anchor", type=float, default=None, help="anchor coefficient of every recipe; not given: each recipe's own")
    parser.add_argument("--kto-every", type=int, default=defaults["kto_every"], help="interactions between trainings of the recipe kto")
    parser.add_argument("--kto-epochs", type=int, default=defaults["kto_epochs"], help="over all logged answers, in each training")
    parser.add_argument("--kto-learning-rate", type=float, default=defaults["kto_learning_rate"], help="at first; it falls to 0, as TRL's default")
    parser.add_argument("--warm-start-steps", type=int, default=None, help="supervised steps at most")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the model is too small for more to help")
    parser.add_argument("--out", type=Path, default=Path("adaptation-lab"), help="folder of runs, warm starts, report.md and plots")
    parser.add_argument("--report-only", action="store_true", help="make report and plots anew from the runs that are there")
    arguments = parser.parse_args(argv)
    try:
        arguments.planned = [] if arguments.report_only else _plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    if any(options.is_kto for options in arguments.planned) and not trl_grpo.available():
        parser.error(f"the recipe {kto.NAME} needs TRL, which is not installed: {trl_grpo.INSTALL}")
    return arguments


def _plan(arguments: argparse.Namespace) -> list[RunOptions]:
    """Every run asked for, one seed after the other, so that an interrupted call leaves whole comparisons. Raises ValueError for what cannot be."""
    shared = {item.name: getattr(arguments, item.name) for item in fields(RunOptions) if hasattr(arguments, item.name) and item.name != "names"}
    every = itertools.product(arguments.seeds, arguments.populations, arguments.names, arguments.scales, arguments.recipes)
    planned = [
        RunOptions(recipe=recipe, population=population, names=names, scale=scale, seed=seed, **shared)
        for seed, population, names, scale, recipe in every
    ]
    if arguments.warm_start_steps is None:
        return planned
    return [replace(options, warm_start=replace(options.warm_start, max_steps=arguments.warm_start_steps)) for options in planned]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what has no file yet, then write the report over all files. Returns the exit status: 1 where there is none, or one is of other options."""
    arguments = _arguments(argv)
    torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
    words = shlex.join(["online-sao", "bench", "adaptation-lab", *(sys.argv[1:] if argv is None else argv)])
    fine = arguments.report_only or run_all(
        arguments.planned,
        lambda options: run_file(arguments.out, options),
        _identity,
        lambda options, progress: _run_one(options, arguments.out, words, progress),
        console,
    )
    return 0 if report_all(arguments.out, write_report, console) and fine else 1
