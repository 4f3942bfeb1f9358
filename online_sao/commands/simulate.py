"""``online-sao simulate``: simulated users against a running service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from online_sao.commands.common import console


def simulate(
    url: Annotated[str, typer.Option(help="Where the service answers.")] = "http://127.0.0.1:8000",
    preference: Annotated[str, typer.Option(help="What the users like: first-person or plain-words.")] = "first-person",
    users: Annotated[int, typer.Option(min=1, help="Users at once.")] = 8,
    scores: Annotated[int, typer.Option(min=1, help="Answers asked for and scored.")] = 160,
    seed: Annotated[int, typer.Option(help="Seed of the order of prompts.")] = 0,
    window: Annotated[int, typer.Option(min=1, help="Interactions in a window, and in the frozen control.")] = 40,
    max_backlog: Annotated[int, typer.Option(min=1, help="Most answers under way or not yet learned from; users wait beyond it.")] = 16,
    control: Annotated[bool, typer.Option(help="First sample the last window's prompts on the version served at the start.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this JSON file.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="ONLINE_SAO_SERVER__API_TOKEN", help="Bearer token, where the server wants one.")] = None,
) -> None:
    """Let simulated users chat and score by a rule, and measure what the policy learns. Exit code 1 if any call was not answered 2xx."""
    from online_sao.simulation.display import RichDisplay, print_summary
    from online_sao.simulation.run import SimulationOptions
    from online_sao.simulation.run import simulate as run_simulation

    options = SimulationOptions(
        url=url,
        preference=preference,
        users=users,
        scores=scores,
        seed=seed,
        window=window,
        max_backlog=max_backlog,
        control=control,
        api_key=api_key,
    )
    with RichDisplay(console) as display:
        result = asyncio.run(run_simulation(options, display))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    print_summary(console, result)
    raise typer.Exit(1 if result["http"]["non_2xx"] else 0)
