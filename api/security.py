"""Who may call: bearer token where one is set, Host and Origin checks against web pages. Owns that decision, for every route and websocket alike.

With a token: /v1, /admin and /metrics need it as a bearer token; everything else but the two health routes takes it as the password of HTTP
Basic too, so that a browser can open the dashboard. Without a token the server listens on loopback only, and a page in the operator's browser is
the one to keep out: Host must be a name of this machine (DNS rebinding), and a state-changing request must come from the server's own origin.
Pages of the configured CORS origins may use /v1, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import error_object, error_response
from online_sao.config import ServerSettings
from online_sao.errors import AuthenticationError, ConfigurationError, ForbiddenError, InvalidRequestError, OnlineSAOError

OPEN_PATHS = ("/healthz", "/readyz")
BEARER_PREFIXES = ("/v1", "/admin", "/metrics")
CORS_PREFIX = "/v1"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_ORIGIN = re.compile(r"https?://[^/?#@\s*]+")


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(settings: ServerSettings) -> None:
    """Raises ConfigurationError where the server would be open to others without a token."""
    if settings.api_token is not None and not settings.api_token.get_secret_value().strip():
        raise ConfigurationError("server.api_token is empty. Set a token of some length, or leave it out to serve on loopback only.")
    if settings.api_token is None and not is_loopback(settings.host):
        raise ConfigurationError(
            f"server.host is {settings.host}, which other machines can reach, and no server.api_token is set. "
            "Set ONLINE_SAO_SERVER__API_TOKEN, or listen on 127.0.0.1."
        )
    for origin in settings.cors_origins:
        if origin == "*" and settings.api_token is None:
            raise ConfigurationError(
                "server.cors_origins is '*' and no server.api_token is set: any web page could use this server through your browser. "
                "Name the origins, or set a token."
            )
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigurationError(
                f"server.cors_origins holds {origin!r}; an origin is scheme, host and port alone, as in 'https://app.example.com'."
            )


class _Preflights(CORSMiddleware):
    """Starlette's, whose refusals have the shape of all errors here."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        origin = request_headers.get("origin", "")
        if not self.is_allowed_origin(origin):
            refusal = _preflight_refusal(origin)
        else:
            refusal = InvalidRequestError(f"{bytes(answer.body).decode()}. Pages may send GET, POST and DELETE.")
        kept = {name: value for name, value in answer.headers.items() if name not in ("content-length", "content-type")}
        return JSONResponse(error_object(refusal), status_code=refusal.status, headers=kept)


def _preflight_refusal(origin: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Pages of {origin[:80]!r} may not use this server: the origin is not in server.cors_origins. Add it there and restart the server.",
        param="origin",
    )


class Cors:
    """Middleware, outside of Security so that refusals can be read too: answers browsers' questions about /v1 for the configured origins."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self.app = app
        self._anybody = bool(origins)
        self._cors = _Preflights(
            app,
            allow_origins=[origin.lower() for origin in origins],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-completion-id", "retry-after", "x-should-retry"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inside = scope["type"] == "http" and _is_below(scope["path"], CORS_PREFIX)
        # Without origins nothing changes but the answer to a preflight, which then says what to set.
        inside = inside and (self._anybody or scope["method"] == "OPTIONS")
        await (self._cors if inside else self.app)(scope, receive, send)


class Security:
    """Middleware. Refuses before any route, body or websocket handshake is looked at."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self._token = settings.api_token.get_secret_value().encode() if settings.api_token is not None else None
        self._hosts = {host.lower().strip("[]") for host in settings.allowed_hosts}
        self._origins = frozenset(origin.lower() for origin in settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await error_response(refusal)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})

    def _refusal(self, scope: Scope) -> OnlineSAOError | None:
        headers = Headers(scope=scope)
        path: str = scope["path"]
        if self._token is None:
            return self._host_refusal(headers) or self._origin_refusal(scope, headers)
        if path in OPEN_PATHS or self._has_bearer(headers):
            return None
        if any(_is_below(path, prefix) for prefix in BEARER_PREFIXES):
            return AuthenticationError("This server needs its token: send 'Authorization: Bearer <token>'.")
        if not self._has_basic(headers):
            refusal = AuthenticationError("This page needs the server's token: any user name, and the token as the password.")
            refusal.headers = {"WWW-Authenticate": 'Basic realm="Online SAO", charset="UTF-8"'}
            return refusal
        # A browser sends Basic credentials by itself, also for a foreign page: only here does a token not speak for its sender.
        return self._origin_refusal(scope, headers)

    def _host_refusal(self, headers: Headers) -> OnlineSAOError | None:
        host = _host_of(f"//{headers.get('host', '')}", without_port=True)
        if host in self._hosts:
            return None
        return ForbiddenError(f"The Host header names {host[:80]!r}, which is not one of server.allowed_hosts.")

    def _origin_refusal(self, scope: Scope, headers: Headers) -> OnlineSAOError | None:
        """A browser names the page's origin on every state-changing request and websocket; other clients send none."""
        origin = headers.get("origin")
        changes_state = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if origin is None or not changes_state or _host_of(origin) == headers.get("host", "").lower():
            return None
        if origin.lower() in self._origins and scope["type"] == "http" and _is_below(scope["path"], CORS_PREFIX):
            return None
        return ForbiddenError(f"Requests from pages of {origin[:80]!r} are not accepted; only this server's own pages may send them.")

    def _has_bearer(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(given.strip().encode("latin-1"))

    def _has_basic(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            _, _, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        except binascii.Error:
            return False
        return self._is_token(password)

    def _is_token(self, given: bytes) -> bool:
        return self._token is not None and hmac.compare_digest(given, self._token)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def _host_of(url: str, *, without_port: bool = False) -> str:
    """Lower-case host (and port) of a URL; empty where there is none, so that nothing equals it."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if without_port else parts.netloc.lower()
    except ValueError:
        return ""
