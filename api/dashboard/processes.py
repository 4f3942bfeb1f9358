"""The serving processes of the database: a View in, HTML out. Pure; all text from data is escaped. Knows nothing of NiceGUI or services."""

from __future__ import annotations

from html import escape

from api.dashboard.markup import Column, ago, table
from api.dashboard.view import View

SILENT_SECONDS = 10.0


def processes(view: View) -> str:
    """One row each: what it serves, whether it leads, and since when it is silent."""
    found = view.snapshot.processes
    if not found:
        return "<p class=muted>None has given a sign of life yet.</p>"
    columns = (Column("Process"), Column("Role"), Column("Version", number=True), Column("Last sign of life"), Column("To be written", number=True))
    rows = []
    for process in found:
        version = "loading" if process.policy_version is None else f"v{process.policy_version}"
        role = "leads" if process.leading else "follows"
        told = ago(view.snapshot.as_of - process.heartbeat_age)
        if process.heartbeat_age > SILENT_SECONDS:
            told = f'<span class="alarm">{told}</span>'
        problem = f'<br><span class="alarm">{escape(process.problem)}</span>' if process.problem else ""
        cells = (f"{escape(process.host)}, pid {process.pid}{problem}", role, version, told, str(process.spool_records))
        rows.append((cells, process.leading))
    return table("Serving processes", columns, rows, stack=True)
