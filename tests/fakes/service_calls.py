"""Calls of a running server, and looks into its PostgreSQL database from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
from server_process import Server, user


def call(server: Server, method: str, path: str, timeout: float = 60, **given: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}{path}", trust_env=False, timeout=timeout, **given)


def chat(server: Server, name: str = "ada", **body: Any) -> httpx.Response:
    return call(server, "POST", "/v1/chat/completions", json={"model": "tiny", "messages": user(), "max_tokens": 8, "user": name, **body})


def post_score(server: Server, completion_id: str, value: float = 1.0) -> httpx.Response:
    return call(server, "POST", "/v1/feedback", json={"completion_id": completion_id, "value": value})


def score(server: Server, completion_id: str, value: float = 1.0) -> dict[str, Any]:
    return post_score(server, completion_id, value).raise_for_status().json()


def rows(server: Server, query: str, *parameters: Any) -> list[dict[str, Any]]:
    """Of the PostgreSQL database that the server uses."""

    async def fetch() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(server.environment["ONLINE_SAO_STORAGE__DATABASE_URL"].replace("+asyncpg", ""))
        try:
            return [dict(row) for row in await connection.fetch(query, *parameters)]
        finally:
            await connection.close()

    return asyncio.run(fetch())
