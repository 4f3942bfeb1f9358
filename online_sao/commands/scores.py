"""``online-sao scores``: which scores had no effect lately, and why. Talks to the running service over HTTP."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from online_sao.commands.common import ConfigOption, console
from online_sao.commands.service import ApiKeyOption, JsonOption, Service, UrlOption, find_service
from online_sao.wording import age


def scores(
    hours: Annotated[float, typer.Option(min=0.01, help="How far back.")] = 24.0,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many of the answers are named, the newest.")] = 10,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Scores that had no effect, by reason, with what to do, and the newest of their answers. Needs the running service."""
    service = find_service(url, api_key, config)
    found = service.call("GET", "/admin/scores/without-effect", params={"hours": hours})
    if as_json:
        console.print_json(json.dumps(found))
        return
    for line in [*_reasons(found, hours), *(_answers(service, found["since"], limit) if found["scores"] else ())]:
        console.print(line, soft_wrap=True, markup=False)


def _reasons(found: dict[str, Any], hours: float) -> list[str]:
    lines = [f"{found['scores']} {'score' if found['scores'] == 1 else 'scores'} of the last {age(hours * 3600)} had no effect on the policy."]
    for one in found["data"]:
        lines += [f"{one['scores']:>6}  {one['words'] or 'for a reason of their own, which their receipts say'}"]
        if one["advice"]:
            lines.append(f"        What to do: {one['advice']}")
    return lines


def _answers(service: Service, since: float, limit: int) -> list[str]:
    page = service.call("GET", "/v1/interactions", params={"without_effect": True, "since": since, "limit": limit})
    lines = [f"Their answers, newest first{f' ({limit} shown; --limit shows more)' if page['has_more'] else ''}:"]
    now = time.time()
    for choice in page["data"]:
        told = "; ".join(f"{score['value']:g} {score['status']}: {score['reason'] or '-'}" for score in choice["scores"])
        lines.append(f"  {choice['id']}  {age(now - choice['created'])} ago, version {choice['policy_version']}, {told}")
    return lines
