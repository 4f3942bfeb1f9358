"""``online-sao export``: logged interactions into a file of JSON lines, beside a running service or without one."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from online_sao.commands.common import ConfigOption, DataDirOption, console, errors, load_settings
from online_sao.errors import ConfigurationError

if TYPE_CHECKING:
    from online_sao.config import Settings
    from online_sao.storage.repositories.exports import Filters


def export(
    out: Annotated[Path, typer.Option(help="File to write; replaced if it exists.")],
    since: Annotated[str | None, typer.Option(help="Asked for at this time or later: ISO 8601 (UTC by default) or Unix seconds.")] = None,
    until: Annotated[str | None, typer.Option(help="Asked for before this time.")] = None,
    user: Annotated[str | None, typer.Option(help="Of this user only.")] = None,
    scored_only: Annotated[bool, typer.Option("--scored-only", help="Only interactions that got a score.")] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write logged interactions with tokens, logprobs, scores and receipts as JSON lines. The service may go on running. Exit code 1, and no file,
    if none matches."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    from online_sao.storage.repositories.exports import Filters

    filters = Filters(since=_time(since, "--since"), until=_time(until, "--until"), user=user, scored_only=scored_only)
    if filters.since is not None and filters.until is not None and filters.since >= filters.until:
        raise ConfigurationError(f"--since {since} is not before --until {until}: nothing can lie between. Exchange the two.")
    count, scored = asyncio.run(_export(settings, filters, out))
    if not count:
        narrowed = any((since, until, user is not None, scored_only))
        advice = "Loosen the filters" if narrowed else "Ask the service something first"
        kept = f"; {out} is left as it was" if out.exists() else ""
        errors.print(
            f"No logged interaction {'matches' if narrowed else 'is there'} in {settings.database_url.split('@')[-1]}: nothing was written{kept}. "
            f"{advice}, or name another folder with --data-dir.",
            style="red",
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(1)
    console.print(f"{count} interactions, {scored} of them scored: {out}", soft_wrap=True)


async def _export(settings: Settings, filters: Filters, out: Path) -> tuple[int, int]:
    """(interactions, those with a score). The file appears when it is whole, and not at all without interactions."""
    from online_sao.service.export import ExportService
    from online_sao.storage.migrations import require_current
    from online_sao.storage.session import Database

    database = Database(settings.database_url)
    temporary = out.with_name(f"{out.name}.tmp")
    count = scored = 0
    try:
        await require_current(database)
        lines = ExportService(database, settings).lines(filters)
        header, line = await anext(lines), await anext(lines, None)
        if line is None:
            return 0, 0
        out.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file, console.status("Exporting") as status:
            file.write(json.dumps(header, ensure_ascii=False) + "\n")
            while line is not None:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                count, scored = count + 1, scored + bool(line["scores"])
                status.update(f"Exporting: {count} interactions")
                line = await anext(lines, None)
        temporary.rename(out)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}. Choose another file with --out.") from error
    finally:
        temporary.unlink(missing_ok=True)
        await database.dispose()
    return count, scored


_UNIX_SECONDS = (1e9, 1e11)
"""2001 to 5138. A number outside is a year, a day without dashes or milliseconds, not what was meant."""


def _time(text: str | None, option: str) -> float | None:
    """Unix seconds. A plain number is one only where it can be a time of ours; 20260131 is a day (ISO 8601)."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if _UNIX_SECONDS[0] <= number < _UNIX_SECONDS[1]:
        return number
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{option} {text!r} is no time. Write 2026-01-31, 2026-01-31T18:00+01:00, or Unix seconds (1769882400).") from error
