"""One server shared by the whole folder, and others where a test must break one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from server_process import Server, user


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("api") / "data").start()
    yield server
    assert server.stop() < 10
    assert server.process is not None


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Make servers that the test may break; what is left of them is ended."""
    made: list[Server] = []

    def make(environment: dict[str, str] | None = None) -> Server:
        made.append(Server(tmp_path / f"data{len(made)}", environment))
        return made[-1]

    yield make
    for server in made:
        if server.process is not None and server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        yield http


@pytest.fixture
def completion(client: OpenAI) -> Any:
    return client.chat.completions.create(model="tiny", messages=user(), max_tokens=4)
