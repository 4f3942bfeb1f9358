"""``online-sao doctor``: what is right, what is not, and what to change."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from online_sao.commands.common import ConfigOption, DataDirOption, console, load_settings

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    data_dir: DataDirOption = None,
    model: Annotated[str | None, typer.Option(help="'bundled', or a local folder or hub id of a chat model.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port the service is to have, or has. [default: 8000]")] = None,
    self_check: Annotated[bool, typer.Option(help="Load the model and compare the engine with it: the check that takes longest.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: ConfigOption = None,
) -> None:
    """Check machine, data and model, and say what to change. Changes nothing. Exit code 1 if anything fails."""
    settings = load_settings(config, server={"port": port}, storage={"data_dir": data_dir}, policy={"model": model})
    from online_sao.runtime.doctor import examine

    if as_json:
        checks = asyncio.run(examine(settings, self_check=self_check))
        failed = any(check.state == "fail" for check in checks)
        rows = [{"name": check.name, "state": check.state, "found": check.found, "advice": check.advice} for check in checks]
        typer.echo(json.dumps({"ok": not failed, "checks": rows}, indent=1))
        raise typer.Exit(failed)
    from rich.markup import escape
    from rich.table import Table

    with console.status("Looking"):
        checks = asyncio.run(examine(settings, self_check=self_check))
    table = Table("", "check", "found", "what to change", show_lines=False, pad_edge=False)
    for check in checks:
        table.add_row(f"[{_STYLES[check.state]}]{check.state}[/]", check.name, escape(check.found), escape(check.advice))
    console.print(table)
    failed = any(check.state == "fail" for check in checks)
    console.print("Something must be changed first." if failed else "Fit to serve.", style=_STYLES["fail" if failed else "ok"])
    raise typer.Exit(failed)
