"""Does the policy follow when what people want shifts, and is it the scores that move it? Whole servers and simulated users, seed by seed.

For each seed: a fresh server learns the schedule's phases but the last; at the last shift it is stopped and its data folder copied; the real branch
goes on with true scores, the anchor-only branch with neutral ones, so that only the pull towards the base model moves it. The frozen control (the
version before any learning, on the same prompts) comes from the simulation itself. With --recipes each recipe goes through the same, with the same
prompts, users and schedule for a seed, and they are compared. Run with `python -m online_sao.benchmarks.adaptation`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from rich.console import Console

from online_sao.benchmarks.adaptation_measures import excludes, population_of, recipe_of
from online_sao.benchmarks.adaptation_report import summarise, write_report
from online_sao.benchmarks.environment import environment
from online_sao.benchmarks.local_server import LocalServer
from online_sao.benchmarks.report_files import write_result
from online_sao.config import EngineSettings, LearningSettings, Settings
from online_sao.config.learning import RecipeName
from online_sao.errors import ConfigurationError, OnlineSAOError
from online_sao.simulation.display import RichDisplay, phases_table
from online_sao.simulation.plan import DEFAULT_SCORES, POPULATIONS, Population
from online_sao.simulation.preferences import SCALES
from online_sao.simulation.run import SimulationOptions, simulate
from online_sao.wording import did_you_mean

DEFAULT_SCHEDULE = "first-person,plain-words,ornate-words"
CONTROLS = ("frozen", "anchor-only")
console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Planned:
    """One result to make. ``recipe`` as in --recipes; None: what the settings say, and nothing is compared."""

    seed: int
    population: Population
    recipe: str | None
    stem: str
    """Of its file."""

    @property
    def title(self) -> str:
        return f"{self.recipe or 'the settings'}, {self.population}, seed {self.seed}"

    def settings(self, shared: Mapping[str, str]) -> dict[str, str]:
        return dict(shared) if self.recipe is None else {**recipe_settings(self.recipe), **shared}


def recipe_settings(recipe: str) -> dict[str, str]:
    """`NAME` or `NAME/PRESET`."""
    name, _, preset = recipe.partition("/")
    return {"learning.recipe": name, "learning.preset": preset or "live"}


def plan_runs(arguments: argparse.Namespace) -> list[Planned]:
    """One seed of everything after the other, so that an interrupted call has compared like with like."""
    planned = []
    for seed, population, recipe in itertools.product(arguments.seeds, arguments.population, arguments.recipes or [None]):
        named = population != "uniform" and (recipe is not None or len(arguments.population) > 1)
        parts = [recipe.replace("/", "-") if recipe else "", population if named else "", f"seed-{seed}"]
        planned.append(Planned(seed, population, recipe, "-".join(part for part in parts if part)))
    return planned


def run_seed(options: SimulationOptions, settings: dict[str, str], controls: Sequence[str], folder: Path) -> dict[str, Any]:
    """All branches of one seed, their servers' data under ``folder`` (emptied first). Raises OnlineSAOError where a server or a run fails."""
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    settings = {"learning.seed": str(options.seed), **settings}
    last = len(options.plan().phases)
    runs: dict[str, Any] = {}
    if "anchor-only" in controls:
        runs["before"] = _branch("before the last shift", replace(options, last_phase=last - 1), settings, folder / "real")
        shutil.copytree(folder / "real", folder / "anchor-only")
        after = replace(options, first_phase=last, control=False)
        runs["real"] = _branch("real scores", after, settings, folder / "real")
        runs["anchor-only"] = _branch("neutral scores", replace(after, neutral_from_phase=last), settings, folder / "anchor-only")
    else:
        runs["real"] = _branch("real scores", options, settings, folder / "real")
    return {
        "benchmark": "adaptation",
        "format": 1,
        "seed": options.seed,
        "schedule": options.schedule,
        "settings": settings,
        "controls": list(controls),
        "seconds": time.monotonic() - started,
        "environment": environment(),
        "summary": summarise(runs),
        "runs": runs,
    }


def _branch(name: str, options: SimulationOptions, settings: dict[str, str], data_dir: Path) -> dict[str, Any]:
    console.print(f"{name}: starting a server on {data_dir}")
    with LocalServer(data_dir, settings) as server, RichDisplay(console) as display:
        result = asyncio.run(simulate(replace(options, url=server.url), display))
    console.print(phases_table(result))
    return result


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise argparse.ArgumentTypeError(f"{text!r}: give group.name=value, as in learning.policy_learning_rate=1e-3")
    return name.strip(), value.strip()


def _recipe(text: str) -> str:
    """Raises ArgumentTypeError where the server would not start with it."""
    from online_sao.runtime.learner_setup import learning_recipe  # imports torch and the learner: only where recipes are named

    learning = {key.removeprefix("learning."): value for key, value in recipe_settings(text).items()}
    try:
        learning_recipe(Settings(learning=LearningSettings.model_validate(learning)))
    except ValidationError:
        names = get_args(RecipeName)
        near = did_you_mean(learning["recipe"], names) if learning["recipe"] not in names else ""
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME or NAME/paper, of {', '.join(names)}.{near}") from None
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text.removesuffix("/live")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="adaptation", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="each a fresh server; those with a finished file are skipped")
    parser.add_argument("--schedule", default=DEFAULT_SCHEDULE, help="preferences in order, each with :N interactions or --scores-per-phase")
    parser.add_argument("--scores-per-phase", type=int, default=DEFAULT_SCORES, help="interactions of a phase that names no number")
    parser.add_argument("--recipes", type=_recipe, nargs="+", metavar="RECIPE", help="recipes to compare; NAME/paper: with the preset paper")
    parser.add_argument("--population", choices=POPULATIONS, nargs="+", default=["uniform"], help="whether what is wanted depends on user and topic")
    parser.add_argument("--scale", choices=SCALES, default="graded", help="scores in fine steps, or 0 and 1")
    parser.add_argument("--controls", choices=CONTROLS, nargs="+", default=list(CONTROLS), help="what the policy is compared with")
    parser.add_argument("--window", type=int, default=40, help="last interactions of a phase that are compared")
    parser.add_argument("--held-out", type=int, default=3, help="answers to each held-out prompt, before and after each phase")
    parser.add_argument("--users", type=int, default=8, help="users at once")
    parser.add_argument("--max-backlog", type=int, default=16, help="most answers under way or not yet learned from")
    parser.add_argument("--max-tokens", type=int, default=24, help="completion limit in tokens")
    parser.add_argument("--set", dest="settings", type=_setting, action="append", default=[], metavar="GROUP.NAME=VALUE", help="a server setting")
    parser.add_argument("--engine", choices=get_args(EngineSettings.model_fields["kind"].annotation), help="short for --set engine.kind=")
    parser.add_argument("--out", type=Path, default=Path("adaptation"), help="folder of [RECIPE-][mixed-]seed-N.json, report.md and plots")
    parser.add_argument("--keep-data", action="store_true", help="keep the servers' data folders (under OUT/data)")
    parser.add_argument("--report-only", action="store_true", help="make report and plots anew from the seed files that are there")
    arguments = parser.parse_args(argv)
    arguments.settings = dict(arguments.settings)
    if arguments.engine and arguments.settings.setdefault("engine.kind", arguments.engine) != arguments.engine:
        parser.error(f"--engine {arguments.engine} and --set engine.kind={arguments.settings['engine.kind']} do not go together; give one of them")
    if not arguments.report_only:
        _check_plan(parser, arguments)
    return arguments


def _check_plan(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends with what to change where the runs would fail later, or could not be compared."""
    if "anchor-only" in arguments.controls and "," not in arguments.schedule:
        parser.error("--controls anchor-only needs a schedule with a shift; name two phases, or --controls frozen")
    if arguments.recipes and (own := {"learning.recipe", "learning.preset"} & arguments.settings.keys()):
        parser.error(f"--recipes and --set {', '.join(sorted(own))} do not go together; give a preset as in sao/paper")
    for population in arguments.population:
        try:
            phases = _options(arguments, 0, population).plan().phases
        except ConfigurationError as error:
            parser.error(error.message)
        if arguments.recipes and len(arguments.recipes) > 1 and not (len(phases) > 1 and excludes(phases[-2].name, phases[-1].name)):
            parser.error(
                "--recipes: the last shift of the schedule must be to preferences that exclude those before it (else what was learned before may "
                f"please on), as in {DEFAULT_SCHEDULE}"
            )


def _options(arguments: argparse.Namespace, seed: int, population: Population | None = None) -> SimulationOptions:
    """``population``: one of the arguments', the first if left out."""
    phases = [item if ":" in item else f"{item}:{arguments.scores_per_phase}" for item in arguments.schedule.split(",")]
    return SimulationOptions(
        schedule=",".join(phases),
        population=population or arguments.population[0],
        scale=arguments.scale,
        seed=seed,
        users=arguments.users,
        window=arguments.window,
        max_backlog=arguments.max_backlog,
        max_tokens=arguments.max_tokens,
        held_out_repeats=arguments.held_out,
    )


def _run_all(arguments: argparse.Namespace) -> bool:
    """Makes every result that has no file yet. False where one failed."""
    fine = True
    planned = plan_runs(arguments)
    for number, run in enumerate(planned, start=1):
        path = arguments.out / f"{run.stem}.json"
        if path.exists():
            console.print(f"[dim]{run.title}: {path} is there already; skipped[/dim]")
            continue
        console.print(f"[bold]{number} of {len(planned)}: {run.title}[/bold]")
        folder = arguments.out / "data" / run.stem
        options = _options(arguments, run.seed, run.population)
        try:
            result = run_seed(options, run.settings(arguments.settings), arguments.controls, folder)
        except OnlineSAOError as error:
            fine = False
            console.print(f"{run.title} failed: {error.message}", style="red", markup=False)
            continue
        write_result(path, result)
        if not arguments.keep_data:
            shutil.rmtree(folder)
    return fine


def _read(out: Path) -> list[dict[str, Any]]:
    """Every result in ``out``. Raises ConfigurationError where there is none, or one is there twice."""
    found: dict[tuple[str, str, int], Path] = {}
    results = []
    for path in sorted(out.glob("*seed-*.json")):
        result = json.loads(path.read_text())
        same = found.setdefault((population_of(result), recipe_of(result), result["seed"]), path)
        if same != path:
            raise ConfigurationError(f"{same} and {path} are of the same recipe, population and seed: remove one of them.")
        results.append(result)
    if not results:
        raise ConfigurationError(f"There are no seed files in {out}.")
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run what has no file yet, then write the report. Returns the exit status: 1 if a run failed or any call was not answered 2xx."""
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the servers too
    fine = arguments.report_only or _run_all(arguments)
    try:
        results = _read(arguments.out)
    except ConfigurationError as error:
        console.print(error.message, style="red", markup=False)
        return 1
    for path in write_report(results, arguments.out):
        console.print(f"wrote {path}", soft_wrap=True)
    return 0 if fine and not any(result["summary"]["non_2xx"] for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
