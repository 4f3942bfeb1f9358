"""How fast does a recipe follow when what people want shifts, and is its critic worth its cost? A live stream of scored answers, each used once, on a
transformer of a million parameters: a run takes a minute or two, so that recipes can be compared over many seeds. Or on a chat model (`--model
bundled`), asked and judged as the simulation does it, in one process: a run takes about ten minutes of one core, and the same one gives the same
result.

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
from online_sao.benchmarks.adaptation_lab.answers import SCALES
from online_sao.benchmarks.adaptation_lab.bundled import find
from online_sao.benchmarks.adaptation_lab.options import TINY, BundledOptions, LabOptions, RunOptions
from online_sao.benchmarks.adaptation_lab.report import write_report
from online_sao.benchmarks.adaptation_lab.stream import NAMES, POPULATIONS
from online_sao.benchmarks.adaptation_lab.summary import summarise
from online_sao.benchmarks.adaptation_lab.training import interactions_of, run
from online_sao.benchmarks.tiny_policy.lab import Lab
from online_sao.errors import ConfigurationError
from online_sao.simulation.plan import POPULATIONS as CHAT_POPULATIONS

SPELT = {"warm_start": "warm-start-steps", "anchor_only": "no-anchor-only"}
"""Options whose flag has another name."""
RECIPES = ("sao", "sao/paper", "running-mean", "ema", "batch-mean")


def _file_name(options: LabOptions) -> str:
    recipe = re.sub("[/:=]", "-", options.recipe)
    model = f"{Path(options.model).name}-" if isinstance(options, BundledOptions) else ""
    return f"{model}{options.population}-{options.names}-{options.scale}-{recipe}"


def _outcome(summary: Mapping[str, Any]) -> str:
    lasts = " → ".join(f"{phase['final']:.2f}" for phase in summary["phases"])
    recovered = ", ".join(str(phase["recovery"] or f">{phase['interactions']}") for phase in summary["phases"][1:])
    return f"{lasts}; recovered after {recovered}"


LAB: Lab[LabOptions] = Lab(
    name="adaptation-lab",
    named_by=("recipe", "population", "names", "scale", "seed"),
    prepare=lambda options, cache, progress: options.prepare(cache, progress),
    file_name=_file_name,
    length=interactions_of,
    run=run,
    note=lambda score: f"score {score:.2f}",
    summarise=summarise,
    outcome=_outcome,
    write_report=write_report,
)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    tiny, bundled = _defaults(RunOptions), _defaults(BundledOptions)
    parser = argparse.ArgumentParser(prog="adaptation-lab", description=__doc__)
    parser.add_argument(
        "--model", default=TINY, help="tiny: the transformer of a million parameters; or a chat model as policy.model names it: bundled"
    )
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=list(RECIPES),
        metavar="RECIPE",
        help="NAME or NAME/PRESET, then :NUMBER=VALUE; kto: TRL's KTO trainer; oracle: a critic that knows (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="each with prompts of its own (default: %(default)s)")
    parser.add_argument("--populations", choices=POPULATIONS, nargs="+", help="all want the same, or it depends (default: all that the model has)")
    parser.add_argument(
        "--names", choices=NAMES, nargs="+", default=["unnamed"], help="whether prompts name the styles there are (default: %(default)s)"
    )
    parser.add_argument("--scales", choices=SCALES, nargs="+", help="scores of 0 and 1, or in steps (default: binary; of a chat model dense)")
    parser.add_argument("--lag", type=int, help=f"updates that the policy which answers is behind (default: {tiny['lag']})")
    parser.add_argument("--batch-size", type=int, help=f"scored answers of an update (default: {tiny['batch_size']})")
    parser.add_argument("--policy-learning-rate", type=float, help=f"of every recipe (default: {tiny['policy_learning_rate']})")
    parser.add_argument("--value-learning-rate", type=float, help=f"of every recipe (default: {tiny['value_learning_rate']})")
    parser.add_argument("--anchor", type=float, help="anchor coefficient of every recipe (default: each recipe's own)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; for the tiny model one is best (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("adaptation-lab"), help="folder of runs, base models, report.md and plots (default: %(default)s)"
    )
    parser.add_argument("--report-only", action="store_true", help="make report and plots anew from the runs that are there")
    group = parser.add_argument_group("of the tiny model alone")
    group.add_argument("--phase-interactions", type=int, help=f"of each of the three phases (default: {tiny['phase_interactions']})")
    group.add_argument("--kto-every", type=int, help=f"interactions between trainings of the recipe kto (default: {tiny['kto_every']})")
    group.add_argument("--kto-epochs", type=int, help=f"over all logged answers, in each training (default: {tiny['kto_epochs']})")
    group.add_argument("--kto-learning-rate", type=float, help=f"at first; it falls to 0, as TRL's default (default: {tiny['kto_learning_rate']})")
    group.add_argument("--warm-start-steps", type=int, help="supervised steps at most")
    group = parser.add_argument_group("of a chat model alone")
    group.add_argument("--schedule", help=f"preferences in order, each with :N interactions (default: {bundled['schedule']})")
    group.add_argument("--max-tokens", type=int, help=f"of an answer (default: {bundled['max_tokens']})")
    group.add_argument("--no-anchor-only", dest="anchor_only", action="store_false", default=None, help="leave that control out: a third of the time")
    arguments = parser.parse_args(argv)
    try:
        arguments.planned = [] if arguments.report_only else _plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    if any(options.is_kto for options in arguments.planned) and not trl_grpo.available():
        parser.error(f"the recipe {kto.NAME} needs TRL, which is not installed: {trl_grpo.INSTALL}")
    return arguments


def _defaults(options: type[RunOptions | BundledOptions]) -> dict[str, Any]:
    return {item.name: item.default for item in fields(options)}


def _plan(arguments: argparse.Namespace) -> list[LabOptions]:
    """Every run asked for, one seed after the other, so that an interrupted call leaves whole comparisons. Raises ValueError for what cannot be."""
    tiny = arguments.model == TINY
    kind: type[RunOptions | BundledOptions] = RunOptions if tiny else BundledOptions
    shared = _given(arguments, kind)
    if not tiny:
        try:
            find(arguments.model)
        except ConfigurationError as error:
            raise ValueError(f"--model: {error.message}") from None
    every = itertools.product(
        arguments.seeds,
        arguments.populations or (POPULATIONS if tiny else CHAT_POPULATIONS),
        arguments.names,
        arguments.scales or (["binary"] if tiny else ["dense"]),
        arguments.recipes,
    )
    return [
        kind(recipe=recipe, population=population, names=names, scale=scale, seed=seed, **shared) for seed, population, names, scale, recipe in every
    ]


def _given(arguments: argparse.Namespace, kind: type[RunOptions | BundledOptions]) -> dict[str, Any]:
    """What the command says of options that are one and the same for all runs."""
    own = {item.name for item in fields(kind)}
    of_either = {item.name for options in (RunOptions, BundledOptions) for item in fields(options)} - {"names", "model"}
    given = {name: value for name in of_either if (value := getattr(arguments, name, None)) is not None}
    if arguments.warm_start_steps is not None:
        given["warm_start"] = replace(RunOptions(recipe="sao", population="uniform", seed=0).warm_start, max_steps=arguments.warm_start_steps)
    if strange := sorted(given.keys() - own):
        flags = (SPELT.get(name, name.replace("_", "-")) for name in strange)
        raise ValueError(f"--model {arguments.model} has no {', '.join('--' + flag for flag in flags)}")
    return given | ({"model": arguments.model} if "model" in own else {})


def main(argv: Sequence[str] | None = None) -> int:
    """As ``Lab.main``."""
    arguments = _arguments(argv)
    return LAB.main(arguments.planned, arguments, sys.argv[1:] if argv is None else argv)
