"""``online-sao policies``: the versions of the policy, two of them side by side, and going back to one. Talks to the running service over HTTP."""

from __future__ import annotations

import json
import re
import time
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from online_sao.commands.common import ConfigOption, console, errors
from online_sao.commands.policy_diff import print_diff
from online_sao.commands.service import ApiKeyOption, JsonOption, Service, ServiceError, UrlOption, find_service
from online_sao.commands.words import plain, score, shown, when, when_utc

app = typer.Typer(no_args_is_help=True, help="The policy's versions: list, compare, go back. Needs the running service.")

VersionArgument = Annotated[int, typer.Argument(min=0, help="Number of the version; 0 is the base model.")]
WAIT_SECONDS = 60.0


@app.command("list")
def list_versions(
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, the newest; the one that serves is always among them.")] = 20,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest versions and the one that serves, and how their answers were scored."""
    service = find_service(url, api_key, config)
    status = service.call("GET", "/admin/status")
    answer = service.call("GET", "/admin/policies", params={"limit": limit})
    answer["data"] = _with_serving(service, answer["data"], status["active_version"])
    if as_json:
        console.print_json(json.dumps(answer))
        return
    table = Table(
        "version", "state", "served since UTC", "mean score (95 %)", "scores", "note", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for version in answer["data"]:
        style = "bold green" if version["state"] == "active" else None
        cells = (
            f"{version['version']}",
            version["state"],
            when(version["activated_at"]),
            score(version, status["score_range"]),
            f"{version['scores']}",
        )
        table.add_row(*cells, _note(version), style=style)
    console.print(table)


@app.command()
def show(
    version: VersionArgument, url: UrlOption = None, api_key: ApiKeyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """One version, and whether one can go back to it."""
    service = find_service(url, api_key, config)
    policy = _known(service, "GET", f"/admin/policies/{version}")
    if as_json:
        console.print_json(json.dumps(policy))
        return
    score_range = service.call("GET", "/admin/status")["score_range"]
    lineage = {"head": "the learner stands on it", "ancestor": "an ancestor of what the learner stands on", "waiting": "has still to serve"}
    table = Table(show_header=False, box=None)
    table.add_row("version", f"{policy['version']} (parent {shown(policy['parent'])}, update {policy['update']}, epoch {policy['lineage_epoch']})")
    table.add_row("state", policy["state"] + (f": {plain(policy['reason'])}" if policy["reason"] else ""))
    table.add_row("lineage", lineage.get(policy["lineage"], "not on the learner's lineage"))
    table.add_row("served", f"from {when_utc(policy['activated_at'])} to {when_utc(policy['retired_at'])}")
    table.add_row("mean score", f"{score(policy, score_range)}, {policy['scores']} scores")
    if policy["rollback"] is not None:
        table.add_row("rollback", _rollback(policy["rollback"]))
    table.add_row("go back to it", plain(policy["refusal"] or "") or f"online-sao policies rollback {version}")
    console.print(table)


@app.command()
def diff(
    first: Annotated[int, typer.Argument(min=0)],
    second: Annotated[int, typer.Argument(min=0)],
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Two versions side by side: scores, evaluations, updates between them, distance of the weights, what each says."""
    service = find_service(url, api_key, config)
    found = _known(service, "GET", "/admin/policies/diff", params={"from": first, "to": second})
    if as_json:
        console.print_json(json.dumps(found))
        return
    print_diff(found, service.call("GET", "/admin/status")["score_range"])


@app.command()
def rollback(
    version: VersionArgument,
    resume: Annotated[bool, typer.Option("--resume", help="Let the learner go on from there at once; else it is left paused.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; receipts of the scores that are undone will say so.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the engine serves that version.")] = True,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
) -> None:
    """Go back to a version that has served before (or forward again). Exit code 1 if the engine could not load it: the one before goes on serving."""
    service = find_service(url, api_key, config)
    policy = _known(service, "POST", f"/admin/policies/{version}/activate", json={"resume": resume, "reason": reason})
    deadline = time.monotonic() + WAIT_SECONDS
    while wait and policy["rollback"]["state"] == "pending" and time.monotonic() < deadline:
        time.sleep(0.25)
        policy = service.call("GET", f"/admin/policies/{version}")
    done = policy["rollback"]
    console.print(f"{_rollback(done)} {done['expired_trajectories']} waiting answers of the versions left behind will not be learned from.")
    console.print("The learner goes on from there." if resume else "The learner is paused there: `online-sao learner resume` lets it go on.")
    if done["state"] == "failed":
        errors.print(f"Version {policy['active_version']} goes on serving. Go back to another version.", style="red")
        raise typer.Exit(1)


def _known(service: Service, method: str, path: str, **request: Any) -> dict[str, Any]:
    """``service.call``, with a command in the place of the HTTP route where a version is unknown."""
    try:
        return service.call(method, path, **request)
    except ServiceError as error:
        unknown = re.match(r"There is no policy version \d+\.", error.message)
        if unknown is None:
            raise
        raise ServiceError(f"{unknown.group()} `online-sao policies list` shows those there are.", error.answered) from error


def _with_serving(service: Service, versions: list[dict[str, Any]], active: int) -> list[dict[str, Any]]:
    """After a rollback the version that serves may be older than all that were asked for."""
    if any(version["version"] == active for version in versions):
        return versions
    return [*versions, *service.call("GET", "/admin/policies", params={"limit": 1, "before": active + 1})["data"]]


def _note(version: dict[str, Any]) -> str:
    notes = [] if version["parent"] in (None, version["version"] - 1) else [f"from {version['parent']}"]
    notes.append("files removed" if version["files_removed_at"] is not None else plain(version["reason"] or ""))
    return ", ".join(filter(None, notes))


def _rollback(done: dict[str, Any]) -> str:
    asked = f"Rolled back from version {done['from_version']} to version {done['to_version']}"
    if done["state"] == "failed":
        return f"{asked}, but it could not be loaded: {plain(done['problem'])}."
    return f"{asked}; {'the engine is loading it' if done['state'] == 'pending' else 'it serves since ' + when_utc(done['served_at'])}."
