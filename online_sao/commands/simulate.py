"""``online-sao simulate``: simulated users against a running service."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from online_sao.commands.common import ConfigOption, console
from online_sao.commands.service import ApiKeyOption, UrlOption, find_service
from online_sao.errors import ConfigurationError


class Population(StrEnum):
    uniform = "uniform"
    mixed = "mixed"


class Scale(StrEnum):
    graded = "graded"
    thumbs = "thumbs"


_PHASES = "Run from this phase of the schedule on, on a service that has learned the ones before."


def simulate(
    files: Annotated[list[Path] | None, typer.Argument(help="With --compare: result files.", show_default=False)] = None,
    url: UrlOption = None,
    preference: Annotated[str, typer.Option(help="What the users like. An unknown name lists the known ones.")] = "first-person",
    scores: Annotated[int, typer.Option(min=1, help="Answers asked for and scored.")] = 160,
    schedule: Annotated[
        str | None, typer.Option(help="Several phases, in place of --preference and --scores: first-person:160,plain-words:160,ornate-words:160.")
    ] = None,
    population: Annotated[
        Population, typer.Option(help="uniform: all want the same. mixed: what is wanted depends on user and topic.")
    ] = Population.uniform,
    scale: Annotated[Scale, typer.Option(help="graded: scores in fine steps. thumbs: 0 or 1.")] = Scale.graded,
    users: Annotated[int, typer.Option(min=1, help="Users at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the order of prompts and of the users' mishaps.")] = 0,
    noise: Annotated[float, typer.Option(help="Probability that a score is sent the wrong way round.")] = 0.0,
    missing: Annotated[float, typer.Option(help="Probability that an answer is never scored.")] = 0.0,
    late: Annotated[str, typer.Option(help="Scores come this much later: 12 (answers given meanwhile) or 30s.")] = "0",
    window: Annotated[int, typer.Option(min=1, help="Interactions in a window, and in each phase's frozen control.")] = 40,
    max_backlog: Annotated[int, typer.Option(min=1, help="Most answers under way or not yet learned from; users wait beyond it.")] = 16,
    control: Annotated[bool, typer.Option(help="First sample the last windows' prompts on the version served at the start.")] = True,
    held_out: Annotated[int, typer.Option(min=0, help="Answers to each held-out prompt, before the first phase and after each. 0: none.")] = 2,
    from_phase: Annotated[int, typer.Option(min=1, help=_PHASES)] = 1,
    to_phase: Annotated[int | None, typer.Option(min=1, help="Stop after this phase of the schedule.")] = None,
    neutral_from_phase: Annotated[
        int | None, typer.Option(min=1, help="From this phase on, send the neutral score: only the anchor then moves.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this JSON file.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run nothing: print the result FILES side by side.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the scores over the interactions into this PNG file.")] = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
) -> None:
    """Let simulated users chat and score by a rule, and measure what the policy learns. Exit code 1 if any call was not answered 2xx."""
    if compare:
        _compare(files or [], plot)
        return
    if files:
        raise ConfigurationError(f"{files[0]}: result files are for --compare.")
    from online_sao.simulation.run import SimulationOptions

    service = find_service(url, api_key, config)
    options = SimulationOptions(
        url=service.url,
        schedule=schedule or f"{preference}:{scores}",
        population=population.value,
        scale=scale.value,
        users=users,
        seed=seed,
        noise=noise,
        missing=missing,
        late=late,
        window=window,
        max_backlog=max_backlog,
        control=control,
        held_out_repeats=held_out,
        first_phase=from_phase,
        last_phase=to_phase,
        neutral_from_phase=neutral_from_phase,
        api_key=service.api_key,
    )
    result = _run(options, out)
    if plot is not None:
        _plot([result], [options.schedule], plot)
    raise typer.Exit(1 if result["http"]["non_2xx"] else 0)


def _run(options: Any, out: Path | None) -> dict[str, Any]:
    from online_sao.simulation.display import RichDisplay, print_summary
    from online_sao.simulation.run import simulate as run_simulation

    with RichDisplay(console) as display:
        result = asyncio.run(run_simulation(options, display))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    print_summary(console, result)
    return result


def _compare(files: list[Path], plot: Path | None) -> None:
    if not files:
        raise ConfigurationError("--compare needs result files: online-sao simulate --compare A.json B.json")
    from online_sao.simulation.comparison import comparison_table, labels, load_results

    results = load_results(files)
    console.print(comparison_table(results, labels(files)))
    if plot is not None:
        _plot(results, labels(files), plot)


def _plot(results: list[dict[str, Any]], names: list[str], path: Path) -> None:
    try:
        from online_sao.benchmarks.adaptation_plots import write_comparison
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"Plots need {error.name}: pip install 'online-sao[plots]'") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    write_comparison(results, names, path)
    console.print(f"wrote {path}", soft_wrap=True)
