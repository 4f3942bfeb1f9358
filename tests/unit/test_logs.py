"""Log lines: which fields they have, which request they belong to, and what of a request's address stays out."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from online_sao import logs

logger = logging.getLogger("online_sao.of_the_test")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger without handlers, so that ``configure`` gives it its own; afterwards as it was."""
    root = logging.getLogger()
    names = ("online_sao", "api", logs.ACCESS)
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in names}
    level = root.level
    root.handlers[:] = []
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for name, value in levels.items():
        logging.getLogger(name).setLevel(value)


@pytest.fixture
def told(root: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The lines so far, each read as JSON."""
    written = io.StringIO()
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(sys, "stderr", written)
    logs.configure("json", Console())
    monkeypatch.undo()
    return lambda: [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_line_is_an_object_with_its_fields_and_its_exception(told: Any) -> None:
    assert logs.is_json()
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it %s", "failed")
    (line,) = told()
    assert line["exception"].endswith("ValueError: why")
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "online_sao.of_the_test", "it failed")
    assert set(line) == {"timestamp", "level", "logger", "message", "exception"}


async def test_tasks_and_threads_of_a_request_carry_its_id_and_nobody_elses(told: Any) -> None:
    async def later(name: str) -> None:
        await asyncio.sleep(0)
        logger.info("task %s", name)
        await asyncio.to_thread(logger.info, "thread %s", name)

    async def request(identity: str) -> None:
        logs.request_id.set(identity)
        await asyncio.create_task(later(identity))

    await asyncio.gather(asyncio.create_task(request("a")), asyncio.create_task(request("b")))
    logger.info("outside")
    found = {(line["message"], line.get("request_id")) for line in told()}
    assert found == {("task a", "a"), ("thread a", "a"), ("task b", "b"), ("thread b", "b"), ("outside", None)}


def access(target: str, status: int) -> None:
    logging.getLogger(logs.ACCESS).info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:5", "GET", target, "1.1", status)


def test_a_request_is_told_without_its_query_and_watching_is_not_told(told: Any) -> None:
    access("/v1/interactions?user=lovelace", 200)
    for quiet in (200, 503):
        access("/readyz", quiet)
    access("/metrics", 401)
    first, second = told()
    assert first["message"] == "GET /v1/interactions 200"
    assert first.items() >= {"client": "127.0.0.1:5", "method": "GET", "path": "/v1/interactions", "status": 200}.items()
    assert "lovelace" not in json.dumps(first)
    assert (second["path"], second["status"]) == ("/metrics", 401)


def test_text_names_the_request_at_the_end_of_the_line(root: logging.Logger) -> None:
    written = io.StringIO()
    logs.configure("text", Console(file=written, width=200))
    assert not logs.is_json()
    token = logs.request_id.set("req_7")
    try:
        logger.info("it went well")
    finally:
        logs.request_id.reset(token)
    logger.info("and nobody asked")
    first, second = written.getvalue().splitlines()
    assert first.rstrip().endswith("online_sao.of_the_test: it went well [req_7]")
    assert second.rstrip().endswith("and nobody asked")
