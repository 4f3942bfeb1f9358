"""``online-sao demo``: a server of its own, and simulated users whose wishes shift, to be watched on the dashboard."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from online_sao.commands.common import console

DEMO_SCHEDULE = "first-person:160,plain-words:160,ornate-words:160"


def demo(
    port: Annotated[int, typer.Option(help="TCP port; 0 takes a free one.")] = 8000,
    schedule: Annotated[str, typer.Option(help="What the users want, phase by phase.")] = DEMO_SCHEDULE,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to keep what it learns. [default: a temporary one]")] = None,
) -> None:
    """Serve, and let simulated users with shifting preferences chat and score. Ctrl-C ends both."""
    from online_sao.benchmarks.local_server import LocalServer
    from online_sao.simulation.display import RichDisplay, print_summary
    from online_sao.simulation.run import SimulationOptions, simulate

    options = SimulationOptions(schedule=schedule)
    options.plan()  # a schedule that cannot be read is said before a server is started
    # Both end the server too. SIGINT is set as well: a shell that starts a job in the background has it ignored, and Python then leaves it so.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="online-sao-demo-") as scratch:
        try:
            console.print("Starting a server (the first time, the model is converted)", style="dim")
            with LocalServer(data_dir or Path(scratch), {}, port) as server:
                _watch(server.url)
                with RichDisplay(console) as display:
                    result = asyncio.run(simulate(replace(options, url=server.url), display))
                print_summary(console, result)
                _watch(server.url)
                console.print("The users have gone; the server goes on until Ctrl-C.", style="dim")
                while True:
                    time.sleep(1)
        except KeyboardInterrupt:
            console.print("Stopped.", style="dim")


def _watch(url: str) -> None:
    console.print(f"[bold green]Watch it learn:[/bold green] {url}/dashboard", soft_wrap=True)
