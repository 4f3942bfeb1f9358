"""Does the policy follow when what people want shifts, and is it the scores that move it? Whole servers and simulated users, seed by seed.

For each seed: a fresh server learns the schedule's phases but the last; at the last shift it is stopped and its data folder copied; the real branch
goes on with true scores, the anchor-only branch with neutral ones, so that only the pull towards the base model moves it. The frozen control (the
version before any learning, on the same prompts) comes from the simulation itself. Run with `python -m online_sao.benchmarks.adaptation`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from online_sao.benchmarks.adaptation_report import summarise, write_report
from online_sao.benchmarks.environment import environment
from online_sao.benchmarks.local_server import LocalServer
from online_sao.errors import OnlineSAOError
from online_sao.simulation.display import RichDisplay, phases_table
from online_sao.simulation.plan import DEFAULT_SCORES, POPULATIONS
from online_sao.simulation.preferences import SCALES
from online_sao.simulation.run import SimulationOptions, simulate

DEFAULT_SCHEDULE = "first-person,plain-words,ornate-words"
CONTROLS = ("frozen", "anchor-only")
console = Console(stderr=True, highlight=False)


def seed_file(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}.json"


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
    console.print(f"[bold]seed {options.seed}[/bold] {name}: starting a server on {data_dir}")
    with LocalServer(data_dir, settings) as server, RichDisplay(console) as display:
        result = asyncio.run(simulate(replace(options, url=server.url), display))
    console.print(phases_table(result))
    return result


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise argparse.ArgumentTypeError(f"{text!r}: give group.name=value, as in learning.policy_learning_rate=1e-3")
    return name.strip(), value.strip()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="adaptation", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="each a fresh server; those with a finished file are skipped")
    parser.add_argument("--schedule", default=DEFAULT_SCHEDULE, help="preferences in order, each with :N interactions or --scores-per-phase")
    parser.add_argument("--scores-per-phase", type=int, default=DEFAULT_SCORES, help="interactions of a phase that names no number")
    parser.add_argument("--population", choices=POPULATIONS, default="uniform", help="whether what is wanted depends on user and topic")
    parser.add_argument("--scale", choices=SCALES, default="graded", help="scores in fine steps, or 0 and 1")
    parser.add_argument("--controls", choices=CONTROLS, nargs="+", default=list(CONTROLS), help="what the policy is compared with")
    parser.add_argument("--window", type=int, default=40, help="last interactions of a phase that are compared")
    parser.add_argument("--held-out", type=int, default=3, help="answers to each held-out prompt, before and after each phase")
    parser.add_argument("--users", type=int, default=8, help="users at once")
    parser.add_argument("--max-backlog", type=int, default=16, help="most answers under way or not yet learned from")
    parser.add_argument("--max-tokens", type=int, default=24, help="completion limit in tokens")
    parser.add_argument("--set", dest="settings", type=_setting, action="append", default=[], metavar="GROUP.NAME=VALUE", help="a server setting")
    parser.add_argument("--out", type=Path, default=Path("adaptation"), help="folder of seed-N.json, report.md and plots")
    parser.add_argument("--keep-data", action="store_true", help="keep the servers' data folders (under OUT/data)")
    parser.add_argument("--report-only", action="store_true", help="make report and plots anew from the seed files that are there")
    arguments = parser.parse_args(argv)
    if "anchor-only" in arguments.controls and "," not in arguments.schedule and not arguments.report_only:
        parser.error("--controls anchor-only needs a schedule with a shift; name two phases, or --controls frozen")
    return arguments


def _options(arguments: argparse.Namespace, seed: int) -> SimulationOptions:
    phases = [item if ":" in item else f"{item}:{arguments.scores_per_phase}" for item in arguments.schedule.split(",")]
    return SimulationOptions(
        schedule=",".join(phases),
        population=arguments.population,
        scale=arguments.scale,
        seed=seed,
        users=arguments.users,
        window=arguments.window,
        max_backlog=arguments.max_backlog,
        max_tokens=arguments.max_tokens,
        held_out_repeats=arguments.held_out,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds that have no file yet, then write the report. Returns the exit status: 1 if a seed failed or any call was not answered 2xx."""
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the servers too
    failed = False
    for seed in [] if arguments.report_only else arguments.seeds:
        path = seed_file(arguments.out, seed)
        if path.exists():
            console.print(f"[dim]seed {seed}: {path} is there already; skipped[/dim]")
            continue
        folder = arguments.out / "data" / f"seed-{seed}"
        try:
            result = run_seed(_options(arguments, seed), dict(arguments.settings), arguments.controls, folder)
        except OnlineSAOError as error:
            failed = True
            console.print(f"seed {seed} failed: {error.message}", style="red", markup=False)
            continue
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(result, separators=(",", ":")) + "\n")
        unfinished.rename(path)
        if not arguments.keep_data:
            shutil.rmtree(folder)
    results = [json.loads(path.read_text()) for path in sorted(arguments.out.glob("seed-*.json"))]
    if not results:
        console.print(f"There are no seed files in {arguments.out}.", style="red")
        return 1
    for path in write_report(results, arguments.out):
        console.print(f"wrote {path}", soft_wrap=True)
    return 1 if failed or any(result["summary"]["non_2xx"] for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
