"""``online-sao doctor``: what is right, what is not, and what to change."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from online_sao.commands.common import ConfigOption, DataDirOption, console, load_settings
from online_sao.errors import ConfigurationError

if TYPE_CHECKING:
    from online_sao.config import Settings
    from online_sao.runtime.doctor import Check

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

    async def look() -> list[Check]:
        return [_exposure(settings), *(await examine(settings, self_check=self_check))]

    if as_json:
        checks = asyncio.run(look())
        failed = any(check.state == "fail" for check in checks)
        rows = [{"name": check.name, "state": check.state, "found": check.found, "advice": check.advice} for check in checks]
        typer.echo(json.dumps({"ok": not failed, "checks": rows}, indent=1))
        raise typer.Exit(failed)
    from rich.markup import escape
    from rich.table import Table

    with console.status("Looking"):
        checks = asyncio.run(look())
    table = Table("", "check", "found", "what to change", show_lines=False, pad_edge=False)
    for check in checks:
        table.add_row(f"[{_STYLES[check.state]}]{check.state}[/]", check.name, escape(check.found), escape(check.advice))
    console.print(table)
    failed = any(check.state == "fail" for check in checks)
    console.print("Something must be changed first." if failed else "Fit to serve.", style=_STYLES["fail" if failed else "ok"])
    raise typer.Exit(failed)


def _exposure(settings: Settings) -> Check:
    """Who may call, as `serve` looks at it before anything else."""
    from api.security import check_exposure
    from online_sao.runtime.doctor import Check

    server = settings.server
    try:
        check_exposure(server)
    except ConfigurationError as error:
        return Check("who may call", "fail", "serve refuses these settings", error.message)
    token = "whoever has the token" if server.api_token is not None else "this machine"
    pages = f"; pages of {', '.join(server.cors_origins)}" if server.cors_origins else ""
    return Check("who may call", "ok", f"{token}{pages}")
