"""Talking to the running service over HTTP: the options that say where it is, one call, and errors in words that say what to do next."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from online_sao.errors import OnlineSAOError

UrlOption = Annotated[str, typer.Option(help="Where the service answers.")]
ApiKeyOption = Annotated[str | None, typer.Option(envvar="ONLINE_SAO_SERVER__API_TOKEN", help="Bearer token, where the server wants one.")]
DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_SECONDS = 60.0


class ServiceError(OnlineSAOError):
    """The service could not be asked, or refused. The command line shows the message and ends with exit code 2."""


def call(url: str, api_key: str | None, method: str, path: str, **request: Any) -> dict[str, Any]:
    """The JSON object the service answers. Raises ServiceError in its words, or saying how to start one where nothing answers."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.request(method, f"{url.rstrip('/')}{path}", headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False, **request)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServiceError(
            f"Nothing answers at {url} ({error}). This command works on the running service: name it with --url, or start it with `online-sao serve` "
            "(with --no-learner if nothing is to be learned meanwhile) and try again. Nothing has been changed."
        ) from error
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ServiceError(f"{url} answered {response.status_code} with something that is not this service's. Check --url.")
    if not response.is_success:
        told = answer.get("error")
        message = told.get("message") if isinstance(told, dict) else None
        raise ServiceError(message or f"{url} answered {response.status_code}. Check --url.")
    return answer
