"""``online-sao alarms``: what is wrong now and what was, with the numbers and what to do about it. Talks to the running service over HTTP."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from online_sao.commands.common import ConfigOption, console
from online_sao.commands.service import ApiKeyOption, JsonOption, UrlOption, find_service
from online_sao.commands.words import when_utc
from online_sao.wording import age


def alarms(
    open_only: Annotated[bool, typer.Option("--open", help="Only those that are open now.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, the newest.")] = 20,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open and past alarms, newest first, with what to do. Needs the running service."""
    answer = find_service(url, api_key, config).call("GET", "/admin/alarms", params={"open": open_only, "limit": limit})
    if as_json:
        console.print_json(json.dumps(answer))
        return
    if not answer["data"]:
        console.print("No alarm is open." if open_only else "No alarm has ever been raised.")
    now = time.time()
    for alarm in answer["data"]:
        for line in alarm_lines(alarm, now):
            console.print(line, soft_wrap=True, markup=False)


def alarm_lines(alarm: dict[str, Any], now: float) -> list[str]:
    """One alarm as text. ``now``: Unix seconds."""
    raised, cleared = alarm["raised_at"], alarm["cleared_at"]
    if cleared is None:
        times = f"open since {when_utc(raised)} ({age(now - raised)})"
    else:
        times = f"raised {when_utc(raised)}, cleared {when_utc(cleared)} (after {age(cleared - raised)})"
    lines = [f"{alarm['kind']} ({alarm['severity']}): {times}", f"  {alarm['message']}"]
    numbers = [f"{name} {alarm[name]:.4g}" for name in ("value", "threshold") if alarm[name] is not None]
    if alarm["policy_version"] is not None:
        numbers.append(f"version {alarm['policy_version']}")
    if numbers:
        lines.append(f"  {', '.join(numbers)}")
    lines.append(f"  What to do: {alarm['advice']}")
    if alarm["action"]:
        lines.append(f"  Done by itself: {alarm['action']}")
    return lines
