"""A server of its own for a benchmark: `online-sao serve` in a process, on a free port and a given data folder. Owns its start and clean end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from online_sao.errors import OnlineSAOError

START_SECONDS = 300.0
STOP_SECONDS = 60.0


class ServerFailedError(OnlineSAOError):
    """The server ended, or never became ready; its log says why."""


class LocalServer:
    """Use as a context manager: ready inside, gone outside. ``settings``: dotted names as in the settings file, "learning.threads": "1"."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir / "server.log"
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        variables = {f"ONLINE_SAO_{name.upper().replace('.', '__')}": value for name, value in self._settings.items()}
        command = [sys.executable, "-m", "online_sao.cli", "serve", "--port", str(port), "--data-dir", str(self.data_dir)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self._wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise ServerFailedError(f"The server ended with code {self._process.returncode}: {self._last_line()} ({self.log_path})")
                try:
                    if client.get(f"{self.url}/readyz").is_success:
                        return
                except httpx.HTTPError:
                    pass  # not listening yet
                time.sleep(0.25)
        raise ServerFailedError(f"The server was not ready within {START_SECONDS:.0f} s: {self._last_line()} ({self.log_path})")

    def _end(self) -> None:
        """As Ctrl-C does; killed if that takes a minute, so that nothing is left running."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_line(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
