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
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from online_sao.benchmarks import trl_grpo
from online_sao.benchmarks.adaptation_lab import kto
from online_sao.benchmarks.adaptation_lab.answers import ANSWERS, SCALES
from online_sao.benchmarks.adaptation_lab.options import RunOptions
from online_sao.benchmarks.adaptation_lab.report import write_report
from online_sao.benchmarks.adaptation_lab.stream import NAMES, POPULATIONS
from online_sao.benchmarks.adaptation_lab.summary import summarise
from online_sao.benchmarks.adaptation_lab.training import interactions_of, run
from online_sao.benchmarks.tiny_policy.lab import Lab

RECIPES = ("sao", "sao/paper", "running-mean", "ema", "batch-mean")


def _file_name(options: RunOptions) -> str:
    recipe = re.sub("[/:=]", "-", options.recipe)
    return f"{options.population}-{options.names}-{options.scale}-{recipe}"


def _outcome(summary: Mapping[str, Any]) -> str:
    lasts = " → ".join(f"{phase['final']:.2f}" for phase in summary["phases"])
    recovered = ", ".join(str(phase["recovery"] or f">{phase['interactions']}") for phase in summary["phases"][1:])
    return f"{lasts}; recovered after {recovered}"


LAB: Lab[RunOptions] = Lab(
    name="adaptation-lab",
    named_by=("recipe", "population", "names", "scale", "seed"),
    task=lambda options: ANSWERS,
    file_name=_file_name,
    length=interactions_of,
    run=run,
    note=lambda score: f"score {score:.2f}",
    summarise=summarise,
    outcome=_outcome,
    write_report=write_report,
)


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
    """As ``Lab.main``."""
    arguments = _arguments(argv)
    return LAB.main(arguments.planned, arguments, sys.argv[1:] if argv is None else argv)
