"""A real server process on the tiny model, its data folder looked into from outside, and waiting for what it will do."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
from tiny_model import tiny_model

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300.0
"""Imports alone take a minute where the machine is busy with other tests."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`online-sao serve` in a process of its own; without a learner unless it is asked for."""

    def __init__(self, data_dir: Path, environment: dict[str, str] | None = None, *, learner: bool = False) -> None:
        self.data_dir = data_dir
        self.flags = [] if learner else ["--no-learner"]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "ONLINE_SAO_POLICY__MODEL": str(tiny_model()),
            "ONLINE_SAO_POLICY__NAME": "tiny",
            "ONLINE_SAO_ENGINE__THREADS": "1",
            "ONLINE_SAO_ENGINE__MAX_QUEUE": "8",
            "ONLINE_SAO_SERVER__MAX_BODY_BYTES": "200000",
            **(environment or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        command = [sys.executable, "-m", "online_sao.cli", "serve", *self.flags, "--port", str(self.port), "--data-dir", str(self.data_dir)]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "server.log").open("ab") as log:
            environment = {**inherited, **self.environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, cwd=self.data_dir, env=environment, stdout=log, stderr=log)

    def start(self) -> Self:
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()  # or it would outlive the test that failed, and fail later ones
            raise
        return self

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, f"the server ended:\n{self.log()}"
            try:
                if httpx.get(f"{self.url}/readyz", trust_env=False).is_success:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"not ready in {START_SECONDS} s:\n{self.log()}")

    def log(self) -> str:
        return (self.data_dir / "server.log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> float:
        """SIGINT, as Ctrl-C does. Returns the seconds until the process was gone."""
        assert self.process is not None
        started = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        return time.monotonic() - started

    def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self.data_dir / "online_sao.db")
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, parameters)]
        finally:
            connection.close()

    def interaction(self, completion_id: str, choice: int = 0) -> dict[str, Any]:
        """The interaction's row with its trajectory's columns beside it (state, reason, reward); JSON columns parsed."""
        query = (
            "SELECT i.*, t.state, t.reason, t.reward, t.oldest_policy_version FROM interactions i "
            "LEFT JOIN trajectories t ON t.interaction_id = i.id WHERE i.completion_id = ? AND i.choice = ?"
        )
        (row,) = self.rows(query, completion_id, choice)
        lists = ("token_ids", "prompt_ids", "behavior_logprobs", "version_spans", "messages", "sampling")
        return {key: json.loads(value) if key in lists and value is not None else value for key, value in row.items()}


def until(condition: Callable[[], Any], seconds: float = 10.0, what: str = "it") -> Any:
    """The first true value of ``condition``, looked at every 20 ms."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come to pass in {seconds} s")


def user(text: str = "Tell me something.") -> list[Any]:
    return [{"role": "user", "content": text}]
