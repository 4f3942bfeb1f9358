"""``online-sao learner``: what the learner does, pausing and resuming it. Talks to the running service over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from online_sao.commands.common import console
from online_sao.commands.service import DEFAULT_URL, ApiKeyOption, UrlOption, call

app = typer.Typer(no_args_is_help=True, help="The learner: status, pause, resume. Needs the running service.")

SILENT_SECONDS = 15.0
"""A learner that has given no sign of life for this long is not there."""


@app.command()
def status(url: UrlOption = DEFAULT_URL, api_key: ApiKeyOption = None) -> None:
    """What the learner is doing, and where it stands."""
    _print(call(url, api_key, "GET", "/admin/learner"))


@app.command()
def pause(
    reason: Annotated[str | None, typer.Option(help="Why; whoever looks at the status reads it.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
) -> None:
    """Let no further batch be learned. Serving and scoring go on; what is scored waits."""
    _print(call(url, api_key, "POST", "/admin/learner/pause", json={"reason": reason}))


@app.command()
def resume(url: UrlOption = DEFAULT_URL, api_key: ApiKeyOption = None) -> None:
    """Let the learner go on; one that has stopped because it could not work is started again."""
    _print(call(url, api_key, "POST", "/admin/learner/resume"))


def _print(learner: dict[str, Any]) -> None:
    detail = f": {learner['detail']}" if learner["detail"] and not learner["paused"] else ""
    age = learner["heartbeat_age"]
    if learner["phase"] == "stopped":
        lines = [f"The learner is stopped{detail}"]
    elif age is None or age > SILENT_SECONDS:
        lines = [f"The learner is silent: its last sign of life ({learner['phase']}{detail}) is {age or 0:.0f} s old."]
    else:
        lines = [] if learner["paused"] else [f"The learner is {learner['phase']}{detail}"]
    if learner["paused"]:
        lines.append(f"It is paused: {learner['pause_reason']}")
    lines.append(f"It stands on version {learner['head_version']} (update {learner['head_update']}, lineage epoch {learner['lineage_epoch']}).")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
