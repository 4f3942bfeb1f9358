"""``online-sao learner``: what the learner does, pausing and resuming it. Talks to the running service over HTTP."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from online_sao.commands.alarms import alarm_lines
from online_sao.commands.common import ConfigOption, console
from online_sao.commands.service import ApiKeyOption, JsonOption, Service, UrlOption, find_service
from online_sao.wording import age

app = typer.Typer(no_args_is_help=True, help="The learner: status, pause, resume. Needs the running service.")

_SHOWN = ("as_of", "learner", "batch_size", "pipeline", "last_update", "alarms")


@app.command()
def status(url: UrlOption = None, api_key: ApiKeyOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """What the learner is doing and waits for, its last update, and what is wrong."""
    found = find_service(url, api_key, config).call("GET", "/admin/status")
    if as_json:
        console.print_json(json.dumps({name: found[name] for name in _SHOWN}))
        return
    _print(found)


@app.command()
def pause(
    reason: Annotated[str | None, typer.Option(help="Why; whoever looks at the status reads it.")] = None,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
) -> None:
    """Let no further batch be learned. Serving and scoring go on; what is scored waits."""
    _tell(find_service(url, api_key, config), "/admin/learner/pause", json={"reason": reason})


@app.command()
def resume(url: UrlOption = None, api_key: ApiKeyOption = None, config: ConfigOption = None) -> None:
    """Let the learner go on; one that has stopped because it could not work is started again."""
    _tell(find_service(url, api_key, config), "/admin/learner/resume")


def _tell(service: Service, path: str, **request: Any) -> None:
    service.call("POST", path, **request)
    _print(service.call("GET", "/admin/status"))


def _print(found: dict[str, Any]) -> None:
    learner = found["learner"]
    lines = [_doing(found), *_paused(learner)]
    lines.append(f"It stands on version {learner['head_version']} (update {learner['head_update']}, lineage epoch {learner['lineage_epoch']}).")
    lines += [_last_update(found), _sign_of_life(learner)]
    alarms = found["alarms"]
    lines.append(f"Open alarms: {len(alarms)}" if alarms else "No alarm is open.")
    for line in [*lines, *(line for alarm in alarms for line in alarm_lines(alarm, found["as_of"]))]:
        console.print(line, soft_wrap=True, markup=False)


def _doing(found: dict[str, Any]) -> str:
    learner = found["learner"]
    phase, detail, presence = learner["phase"], learner["detail"], learner["presence"]
    ready = found["pipeline"].get("ready", 0)
    queue = f"{ready} of {found['batch_size']} scored answers for the next update"
    if presence in ("stopped", "off") or (presence == "alive" and phase == "stopped"):
        started = "" if detail else " Start the server without --no-learner, or run `online-sao learn`."
        return f"The learner is stopped{f': {detail}' if detail else '.'}{started}"
    if presence == "starting":
        return "The learner is starting."
    if presence == "ended":
        return f"The learner has ended, and is started again by itself; the server's log says why it ended. Waiting: {queue}."
    if presence == "silent":
        return f"The learner has given no sign of life for {age(learner['silence'])}. It is very busy, hangs or is gone: its log says which."
    if learner["paused"]:
        return f"The learner is paused. Waiting: {queue}."
    if phase == "paused":
        return f"The learner goes on within seconds. Waiting: {queue}."
    if phase == "waiting":
        return f"The learner is waiting: {queue}.{f' ({detail})' if detail else ''}"
    return f"The learner is {phase}{f': {detail}' if detail else '.'}"


def _paused(learner: dict[str, Any]) -> list[str]:
    if not learner["paused"]:
        return []
    lines = [f"It is paused: {learner['pause_reason']}"]
    if learner["phase"] in ("updating", "publishing"):
        lines.append(
            f"An update is still under way ({learner['phase']}: {learner['detail']}). It is finished, and published unless a rollback has left "
            "behind the version it began on."
        )
    return lines


def _last_update(found: dict[str, Any]) -> str:
    update = found["last_update"]
    if update is None:
        return "There has been no update yet."
    ago = f"{age(found['as_of'] - update['finished_at'])} ago"
    if update["accepted"]:
        return f"Last update: {update['number']}, {ago}; it made version {update['policy_version']}."
    return f"Last update: {update['number']}, {ago}; it was discarded: {update['reason']}."


def _sign_of_life(learner: dict[str, Any]) -> str:
    heartbeat = learner["heartbeat_age"]
    return "It has never given a sign of life." if heartbeat is None else f"Last sign of life {age(heartbeat)} ago."
