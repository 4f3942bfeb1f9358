"""No route of ours answers a request whose query it did not understand; OpenAI's own do, as their clients expect."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.app import create_app
from online_sao.config import Settings, StorageSettings

LENIENT = ("/v1/models", "/v1/models/{model_id:path}")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """Not started: what a query is refused for is found before anything else is asked."""
    path: Path = tmp_path_factory.mktemp("queries")
    return create_app(Settings(storage=StorageSettings(data_dir=path)))


async def ask(app: FastAPI, method: str, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        return await client.request(method, path)


async def test_every_route_of_ours_refuses_what_it_does_not_know(app: FastAPI) -> None:
    asked = 0
    for route in app.routes:
        if not isinstance(route, APIRoute) or not route.path.startswith(("/v1", "/admin")) or route.path in LENIENT:
            continue
        for method in route.methods & {"GET", "DELETE"}:
            asked += 1
            answer = await ask(app, method, route.path.replace("{version}", "0") + "?foo=bar")
            assert answer.status_code == 400, route.path
            error = answer.json()["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", "foo"), route.path
            assert "Known here: " in error["message"] or "takes none" in error["message"]
    assert asked >= 14


async def test_it_names_what_was_meant(app: FastAPI) -> None:
    error = (await ask(app, "GET", "/v1/interactions?limit=3&polcy_version=3")).json()["error"]
    assert error["param"] == "polcy_version"
    assert "Did you mean 'policy_version'?" in error["message"]
    assert "after, learned_into, limit, model, " in error["message"]
    assert "before, limit, open" in (await ask(app, "GET", "/admin/alarms?score=1")).json()["error"]["message"]


@pytest.mark.parametrize("query", ["api-version=2024-06-01", "limit=20&order=asc", "beta=true"])
async def test_what_openai_clients_send_along_is_no_fault(app: FastAPI, query: str) -> None:
    # 500, as nothing was started; refused it would be 400.
    assert (await ask(app, "GET", f"/v1/models?{query}")).status_code == 500
    assert (await ask(app, "POST", f"/v1/feedback?{query}")).status_code == 500
