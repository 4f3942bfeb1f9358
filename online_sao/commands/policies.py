"""``online-sao policies``: the versions of the policy, two of them side by side, and going back to one. Talks to the running service over HTTP."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from online_sao.commands.common import console, errors
from online_sao.commands.service import DEFAULT_URL, ApiKeyOption, UrlOption, call

app = typer.Typer(no_args_is_help=True, help="The policy's versions: list, compare, go back. Needs the running service.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print the service's answer as it is.")]
VersionArgument = Annotated[int, typer.Argument(min=0, help="Number of the version; 0 is the base model.")]
WAIT_SECONDS = 60.0
_METRICS = ("policy/kl_base", "policy/entropy", "policy/masked_fraction", "data/reward_mean", "data/response_length_mean")


@app.command("list")
def list_versions(
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, the newest.")] = 20,
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest versions, and how their answers were scored."""
    answer = call(url, api_key, "GET", "/admin/policies", params={"limit": limit})
    if as_json:
        console.print_json(json.dumps(answer))
        return
    table = Table("version", "parent", "state", "served since", "mean score (95 %)", "scores", "note")
    for version in answer["data"]:
        note = "files removed" if version["files_removed_at"] is not None else _plain(version["reason"] or "")
        style = "bold green" if version["state"] == "active" else None
        cells = (f"{version['version']}", _shown(version["parent"]), version["state"], _when(version["activated_at"]))
        table.add_row(*cells, _score(version), f"{version['scores']}", note, style=style)
    console.print(table)


@app.command()
def show(version: VersionArgument, url: UrlOption = DEFAULT_URL, api_key: ApiKeyOption = None, as_json: JsonOption = False) -> None:
    """One version, and whether one can go back to it."""
    policy = call(url, api_key, "GET", f"/admin/policies/{version}")
    if as_json:
        console.print_json(json.dumps(policy))
        return
    lineage = {"head": "the learner stands on it", "ancestor": "an ancestor of what the learner stands on", "waiting": "has still to serve"}
    table = Table(show_header=False, box=None)
    table.add_row("version", f"{policy['version']} (parent {_shown(policy['parent'])}, update {policy['update']}, epoch {policy['lineage_epoch']})")
    table.add_row("state", policy["state"] + (f": {_plain(policy['reason'])}" if policy["reason"] else ""))
    table.add_row("lineage", lineage.get(policy["lineage"], "not on the learner's lineage"))
    table.add_row("served", f"from {_when(policy['activated_at'])} to {_when(policy['retired_at'])}")
    table.add_row("mean score", f"{_score(policy)}, {policy['scores']} scores")
    if policy["rollback"] is not None:
        table.add_row("rollback", _rollback(policy["rollback"]))
    table.add_row("go back to it", _plain(policy["refusal"] or "") or f"online-sao policies rollback {version}")
    console.print(table)


@app.command()
def diff(
    first: Annotated[int, typer.Argument(min=0)],
    second: Annotated[int, typer.Argument(min=0)],
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Two versions side by side: scores, updates between them, distance of the weights, what each says."""
    found = call(url, api_key, "GET", "/admin/policies/diff", params={"from": first, "to": second})
    if as_json:
        console.print_json(json.dumps(found))
        return
    lineage = found["lineage"]
    console.print(
        f"Version {first} is {'the ' + lineage['relation'] if lineage['relation'] != 'diverged' else 'not of the lineage'} of version {second}; "
        f"common ancestor {lineage['common_ancestor']}, from there {lineage['updates_from']} and {lineage['updates_to']} updates."
    )
    table = Table("", f"version {first}", f"version {second}")
    table.add_row("mean score (95 %)", _score(found["from"]), _score(found["to"]))
    table.add_row("scores", f"{found['from']['scores']}", f"{found['to']['scores']}")
    weights = found["weights"]
    if weights is not None:
        table.add_row("‖weights − base‖", f"{weights['from_base']:.4g}", f"{weights['to_base']:.4g}")
    console.print(table)
    console.print(f"‖weights of {second} − weights of {first}‖ = {weights['difference']:.4g}" if weights else f"Weights: {found['weights_problem']}.")
    if found["updates"]:
        console.print(_updates(found["updates"]))
    for sample in found["samples"]:
        console.print(
            f"\n[bold]{_plain(sample['prompt'])}[/bold]\n  {first}: {_plain(sample['from'])}\n  {second}: {_plain(sample['to'])}", soft_wrap=True
        )


@app.command()
def rollback(
    version: VersionArgument,
    resume: Annotated[bool, typer.Option("--resume", help="Let the learner go on from there at once; else it is left paused.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; receipts of the scores that are undone will say so.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the engine serves that version.")] = True,
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
) -> None:
    """Go back to a version that has served before (or forward again). Exit code 1 if the engine could not load it: the one before goes on serving."""
    policy = call(url, api_key, "POST", f"/admin/policies/{version}/activate", json={"resume": resume, "reason": reason})
    deadline = time.monotonic() + WAIT_SECONDS
    while wait and policy["rollback"]["state"] == "pending" and time.monotonic() < deadline:
        time.sleep(0.25)
        policy = call(url, api_key, "GET", f"/admin/policies/{version}")
    done = policy["rollback"]
    console.print(f"{_rollback(done)} {done['expired_trajectories']} waiting answers of the versions left behind will not be learned from.")
    console.print("The learner goes on from there." if resume else "The learner is paused there: `online-sao learner resume` lets it go on.")
    if done["state"] == "failed":
        errors.print(f"Version {policy['active_version']} goes on serving. Go back to another version.", style="red")
        raise typer.Exit(1)


def _rollback(done: dict[str, Any]) -> str:
    asked = f"Rolled back from version {done['from_version']} to version {done['to_version']}"
    if done["state"] == "failed":
        return f"{asked}, but it could not be loaded: {_plain(done['problem'])}."
    return f"{asked}; {'the engine is loading it' if done['state'] == 'pending' else 'it serves since ' + _when(done['served_at'])}."


def _updates(updates: list[dict[str, Any]]) -> Table:
    table = Table("update", "made version", *_METRICS, title="Updates between them")
    for update in updates:
        cells = [update["metrics"].get(name) for name in _METRICS]
        table.add_row(f"{update['number']}", f"{update['policy_version']}", *("–" if cell is None else f"{cell:.4g}" for cell in cells))
    return table


def _score(version: dict[str, Any]) -> str:
    if version["mean_score"] is None:
        return "–"
    interval = version["score_interval"]
    return f"{version['mean_score']:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


def _shown(value: object) -> str:
    return "–" if value is None else f"{value}"


def _when(at: float | None) -> str:
    return "–" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _plain(text: str) -> str:
    """Text of a model, not markup of ours."""
    return escape(text.replace("\n", " ⏎ "))
