"""Talking to the running service over HTTP: finding it, one call, and errors in words that say what to do next.

It is found by the settings it was started with: server.host, server.port and server.api_token. --url and --api-key win.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from online_sao.commands.common import load_settings
from online_sao.errors import ConfigurationError, OnlineSAOError

if TYPE_CHECKING:
    from online_sao.config import ServerSettings

UrlOption = Annotated[
    str | None, typer.Option(help="Where the service answers. [default: server.host and server.port of the settings, http://127.0.0.1:8000]")
]
ApiKeyOption = Annotated[str | None, typer.Option(help="Bearer token, where the server wants one. [default: server.api_token of the settings]")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the service's answer as it is.")]
_TIMEOUT_SECONDS = 60.0
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""A server that listens on all addresses is asked on loopback."""


class ServiceError(OnlineSAOError):
    """The service could not be asked, or refused; ``answered``: its HTTP status, where there was one. The command line shows the message and ends
    with exit code 2."""

    def __init__(self, message: str, answered: int | None = None) -> None:
        super().__init__(message)
        self.answered = answered


@dataclass(frozen=True, slots=True)
class Service:
    """``api_key`` None: no token is sent."""

    url: str
    api_key: str | None

    def call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The JSON object the service answers. Raises ServiceError in its words, or saying how to start one where nothing answers."""
        import httpx

        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            response = httpx.request(method, f"{self.url}{path}", headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceError(self._unanswered(method, error)) from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ServiceError(f"{self.url} answered {response.status_code} with something that is not this service's. Check --url.")
        if not response.is_success:
            told = answer.get("error")
            message = told.get("message") if isinstance(told, dict) else None
            if response.status_code == 401:
                message = f"{self.url} wants its token: give --api-key, or set server.api_token (ONLINE_SAO_SERVER__API_TOKEN)."
            raise ServiceError(message or f"{self.url} answered {response.status_code}. Check --url.", response.status_code)
        return answer

    def _unanswered(self, method: str, error: Exception) -> str:
        import httpx

        if _caused_by(error, ssl.SSLError):
            address = f"http://{self.url.removeprefix('https://')}"
            return f"{self.url} does not answer as HTTPS. The service itself speaks plain HTTP: try --url {address}. Nothing has been changed."
        if not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL)):
            done = "" if method == "GET" else " Whether it did what was asked is not known: look before you ask again."
            return f"{self.url} took the request and gave no answer ({error or type(error).__name__}). It may be busy; its log says more.{done}"
        return (
            f"Nothing answers at {self.url} ({error}). This command works on the running service: name it with --url, or with the --config it was "
            "started with, or start it with `online-sao serve` (with --no-learner if nothing is to be learned meanwhile) and try again. "
            "Nothing has been changed."
        )


def find_service(url: str | None, api_key: str | None, config: Path | None) -> Service:
    """Where the service answers, from the flags and else from the settings. Raises ConfigurationError where that can be no service."""
    if url is not None and api_key is not None and config is None:
        return Service(_checked(url), api_key)
    settings = load_settings(config).server
    token = settings.api_token.get_secret_value() if settings.api_token is not None else None
    return Service(_checked(url) if url is not None else _address(settings), api_key if api_key is not None else token)


def _address(settings: ServerSettings) -> str:
    if settings.port == 0:
        raise ConfigurationError("server.port is 0, so the service took a free port: give --url the address it printed when it started.")
    host = _ANY_HOST.get(settings.host.strip("[]"), settings.host.strip("[]"))
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"--url {url} is no address ({error}). Write it as http://127.0.0.1:8000.") from error
    if "://" not in url:
        raise ConfigurationError(f"--url {url} has no scheme. Write http://{url.lstrip('/')}")
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"--url {url}: the service speaks http (https behind a proxy), not {parts.scheme}. Write http://{parts.netloc}")
    if not host:
        raise ConfigurationError(f"--url {url} names no host. Write it as http://127.0.0.1:8000.")
    return url.rstrip("/")


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None
