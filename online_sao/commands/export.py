"""``online-sao export``: logged interactions into a file of JSON lines, beside a running service or without one."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from online_sao.commands.common import ConfigOption, DataDirOption, console, load_settings
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
    """Write logged interactions with tokens, logprobs, scores and receipts as JSON lines. The service may go on running."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    from online_sao.storage.repositories.exports import Filters

    filters = Filters(since=_time(since, "--since"), until=_time(until, "--until"), user=user, scored_only=scored_only)
    count, scored = asyncio.run(_export(settings, filters, out))
    console.print(f"{count} interactions, {scored} of them scored: {out}", soft_wrap=True)


async def _export(settings: Settings, filters: Filters, out: Path) -> tuple[int, int]:
    """(interactions, those with a score). The file appears when it is whole."""
    from online_sao.service.export import ExportService
    from online_sao.storage.migrations import require_current
    from online_sao.storage.session import Database

    database = Database(settings.database_url)
    temporary = out.with_name(f"{out.name}.tmp")
    count = scored = 0
    try:
        await require_current(database)
        out.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file, console.status("Exporting") as status:
            async for line in ExportService(database, settings).lines(filters):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                if line["object"] == "interaction":
                    count, scored = count + 1, scored + bool(line["scores"])
                    status.update(f"Exporting: {count} interactions")
        temporary.rename(out)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}. Choose another file with --out.") from error
    finally:
        temporary.unlink(missing_ok=True)
        await database.dispose()
    return count, scored


def _time(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} {text!r} is no time. Write 2026-01-31, 2026-01-31T18:00+01:00, or Unix seconds.") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
