"""Who may call: every combination of token, Host, Origin and path."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from api.errors import RequestContext
from api.security import Cors, Security, check_exposure
from online_sao.config import ServerSettings
from online_sao.errors import ConfigurationError


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("in")(scope, receive, send)


async def ask(settings: ServerSettings, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app=RequestContext(Security(inner, settings)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        return await client.request(method, path, headers=headers)


OPEN = ServerSettings()
LOCKED = ServerSettings(api_token="s3cret", host="0.0.0.0")  # type: ignore[arg-type]
BASIC = {"authorization": "Basic " + base64.b64encode(b"me:s3cret").decode()}
BEARER = {"authorization": "Bearer s3cret"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("POST", {}, 200),
        ("GET", {"host": "localhost:1"}, 200),
        ("GET", {"host": "LOCALHOST"}, 200),
        ("GET", {"host": "[::1]:8000"}, 200),
        ("GET", {"host": "evil.com"}, 403),
        ("GET", {"host": "localhost.evil.com"}, 403),
        ("GET", {"host": "127.0.0.1.evil.com:8000"}, 403),
        ("GET", {"host": "evil.com:80@127.0.0.1"}, 200),
        ("GET", {"host": ""}, 403),
        ("GET", {"host": "[::1"}, 403),
        ("POST", {"origin": "http://127.0.0.1:8000"}, 200),
        ("POST", {"origin": "http://evil.com"}, 403),
        ("POST", {"origin": "http://127.0.0.1:3000"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": "http://[::1"}, 403),
        ("DELETE", {"origin": "http://evil.com"}, 403),
        ("GET", {"origin": "http://evil.com"}, 200),
    ],
)
async def test_without_a_token_pages_of_others_are_kept_out(method: str, headers: dict[str, str], status: int) -> None:
    answer = await ask(OPEN, method, "/v1/feedback", headers)
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"]["code"] == "forbidden"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models", {}, 401),
        ("/admin/status", {}, 401),
        ("/metrics", {}, 401),
        ("/v1", {}, 401),
        ("/v1/models", BEARER, 200),
        ("/v1/models", {"authorization": "bearer s3cret"}, 200),
        ("/v1/models", {"authorization": "Bearer s3cre"}, 401),
        ("/v1/models", {"authorization": "Bearer s3crett"}, 401),
        ("/v1/models", {"authorization": "Bearer \xe9"}, 401),
        ("/v1/models", {"authorization": "s3cret"}, 401),
        ("/v1/models", BASIC, 401),
        ("/healthz", {}, 200),
        ("/readyz", {}, 200),
        ("/dashboard", {}, 401),
        ("/openapi.json", {}, 401),
        ("/dashboard", BASIC, 200),
        ("/dashboard", BEARER, 200),
        ("/dashboard", {"authorization": "Basic !!"}, 401),
        ("/dashboard", {"authorization": "Basic " + base64.b64encode(b"me:other").decode()}, 401),
    ],
)
async def test_with_a_token_nothing_but_health_is_open(path: str, headers: dict[str, Any], status: int) -> None:
    encoded = {key: value.encode("latin-1") for key, value in headers.items()}
    answer = await ask(LOCKED, "GET", path, encoded)  # type: ignore[arg-type]
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert ("www-authenticate" in answer.headers) == (path in ("/dashboard", "/openapi.json"))


async def test_a_token_speaks_for_any_host_but_a_browsers_password_does_not_speak_for_a_foreign_page() -> None:
    foreign = {"host": "sao.example", "origin": "http://evil.com"}
    assert (await ask(LOCKED, "POST", "/v1/feedback", {**BEARER, **foreign})).status_code == 200
    assert (await ask(LOCKED, "POST", "/dashboard/x", {**BASIC, **foreign})).status_code == 403
    assert (await ask(LOCKED, "POST", "/dashboard/x", {**BASIC, "host": "sao.example", "origin": "https://sao.example"})).status_code == 200


async def test_a_foreign_pages_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8000"), (b"origin", b"http://evil.com")]
    await Security(inner, OPEN)({"type": "websocket", "path": "/dashboard/ws", "headers": headers}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_no_other_machine_may_reach_a_server_without_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="API_TOKEN"):
        check_exposure(ServerSettings(host=host))
    check_exposure(ServerSettings(host=host, api_token="x"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="empty"):
        check_exposure(ServerSettings(host=host, api_token=" "))  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_loopback_needs_none(host: str) -> None:
    check_exposure(ServerSettings(host=host))


PAGE = "https://app.example.com"
WITH_PAGE = ServerSettings(cors_origins=(PAGE,))


async def ask_with_cors(settings: ServerSettings, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    app = RequestContext(Cors(Security(inner, settings), settings.cors_origins))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8000") as client:
        return await client.request(method, path, headers=headers)


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


async def test_a_configured_page_may_use_v1() -> None:
    asked = await ask_with_cors(WITH_PAGE, "OPTIONS", "/v1/chat/completions", {"origin": PAGE, **PREFLIGHT})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in asked.headers["access-control-allow-headers"]
    answer = await ask_with_cors(WITH_PAGE, "POST", "/v1/chat/completions", {"origin": PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/feedback", {"origin": "https://evil.com"}),
        ("POST", "/v1/feedback", {"origin": PAGE + ".evil.com"}),
        ("POST", "/v1/feedback", {"origin": "http://app.example.com"}),
        ("POST", "/v1/feedback", {"origin": PAGE, "host": "evil.com"}),
        ("POST", "/admin/learner/pause", {"origin": PAGE}),
        ("POST", "/dashboard", {"origin": PAGE}),
        ("POST", "/v1x", {"origin": PAGE}),
    ],
)
async def test_a_configured_page_opens_nothing_else(method: str, path: str, headers: dict[str, str]) -> None:
    assert (await ask_with_cors(WITH_PAGE, method, path, headers)).status_code == 403


async def test_other_pages_get_no_leave_to_read() -> None:
    for path, origin in (("/v1/models", "https://evil.com"), ("/admin/status", PAGE)):
        answer = await ask_with_cors(WITH_PAGE, "GET", path, {"origin": origin})
        assert "access-control-allow-origin" not in answer.headers
    assert (await ask_with_cors(WITH_PAGE, "OPTIONS", "/v1/feedback", {"origin": "https://evil.com", **PREFLIGHT})).status_code == 400


@pytest.mark.parametrize("settings", [WITH_PAGE, OPEN], ids=["some origins", "none"])
async def test_a_refused_preflight_says_what_to_set(settings: ServerSettings) -> None:
    answer = await ask_with_cors(settings, "OPTIONS", "/v1/feedback", {"origin": "https://evil.com", **PREFLIGHT})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "origin")
    assert "'https://evil.com'" in error["message"]
    assert "server.cors_origins" in error["message"]
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["x-request-id"]
    assert "access-control-expose-headers" not in (await ask_with_cors(settings, "GET", "/v1/models", {})).headers


async def test_a_preflight_of_a_configured_page_for_another_method_says_which_there_are() -> None:
    answer = await ask_with_cors(WITH_PAGE, "OPTIONS", "/v1/feedback", {"origin": PAGE, **PREFLIGHT, "access-control-request-method": "PUT"})
    assert answer.status_code == 400
    assert "GET, POST and DELETE" in answer.json()["error"]["message"]


async def test_any_page_with_the_token_and_none_without() -> None:
    anyone = ServerSettings(api_token="s3cret", host="0.0.0.0", cors_origins=("*",))  # type: ignore[arg-type]
    answer = await ask_with_cors(anyone, "POST", "/v1/feedback", {"origin": "https://x.com", **BEARER})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
    refused = await ask_with_cors(anyone, "POST", "/v1/feedback", {"origin": "https://x.com"})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "*"), "a page must be able to read why"
    with pytest.raises(ConfigurationError, match="any web page"):
        check_exposure(ServerSettings(cors_origins=("*",)))


@pytest.mark.parametrize("origin", ["app.example.com", "https://app.example.com/", "https://*.example.com", "null", ""])
def test_what_is_no_origin_is_refused_at_start(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="cors_origins"):
        check_exposure(ServerSettings(cors_origins=(origin,)))
