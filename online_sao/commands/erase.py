"""``online-sao erase``: texts and tokens of one user's answers, or of one, for good. Talks to the running service over HTTP."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from online_sao.commands.common import ConfigOption, console, errors
from online_sao.commands.service import ApiKeyOption, Service, ServiceError, UrlOption, find_service
from online_sao.errors import ConfigurationError


def erase(
    user: Annotated[str | None, typer.Option(help="Everything logged under this user, as requests named it.")] = None,
    interaction: Annotated[str | None, typer.Option(metavar="ID", help="One completion, such as chatcmpl-…")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    config: ConfigOption = None,
) -> None:
    """Erase logged texts, tokens, users and comments; counts and score values stay. Exit code 1 if nothing was erased."""
    if (user is None) == (interaction is None):
        raise ConfigurationError("Say what to erase: --user NAME, or --interaction ID; one of the two.")
    service = find_service(url, api_key, config)
    what = f"everything logged under user {user!r}" if user is not None else f"interaction {interaction}"
    if not yes and not _confirmed(f"Erase {what} at {service.url}? There is no way back."):
        errors.print("Nothing has been erased.")
        raise typer.Exit(1)
    erased = _erase(service, user, interaction)
    if not erased:
        errors.print(_nothing(user, interaction), style="red", soft_wrap=True, markup=False)
        raise typer.Exit(1)
    console.print(
        f"{erased} {'answer' if erased == 1 else 'answers'} erased: texts, tokens, user and comments. What the policy has "
        "learned from them it keeps: to undo that, roll back to a version from before. Files that `online-sao export` wrote before "
        "still hold them: delete or export those anew.",
        soft_wrap=True,
    )


def _confirmed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort as error:
        raise ConfigurationError("Nothing has been erased: the question was not answered. Give --yes where nobody can be asked.") from error


def _erase(service: Service, user: str | None, interaction: str | None) -> int:
    """How many answers; 0 where there are none of that name."""
    if interaction is None:
        return int(service.call("DELETE", "/v1/interactions", params={"user": user})["choices"])
    try:
        return int(service.call("DELETE", f"/v1/interactions/{quote(interaction, safe='')}")["choices"])
    except ServiceError as error:
        if error.answered == 404:
            return 0
        raise


def _nothing(user: str | None, interaction: str | None) -> str:
    found = (
        f"nothing is logged under user {user!r}, or all of it has been erased already"
        if user is not None
        else f"there is no interaction {interaction}"
    )
    return (
        f"Nothing was erased: {found}. Spell it as the requests did, capitals too; the dashboard's Interactions tab and `GET /v1/interactions` "
        "show what there is."
    )
