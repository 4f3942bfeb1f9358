"""A server of its own for a benchmark, in a process and on a free port: `online-sao serve` on a given data folder, or another program to compare it
with. Owns its start and clean end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from online_sao.errors import OnlineSAOError

START_SECONDS = 900.0
"""A machine that other runs keep busy takes minutes to import torch and load a model."""
STOP_SECONDS = 60.0


class ServerFailedError(OnlineSAOError):
    """The server ended, or never became ready; its log says why."""


class LocalProgram:
    """Any server. Use as a context manager: ready (``ready_path`` answers 2xx) inside, gone outside. ``command``: without --port, which is put
    behind it. ``port`` 0: a free one. ``folder``: where its log goes."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, ready_path: str, port: int = 0) -> None:
        self.log_path = folder / "server.log"
        self.url = ""
        self._command = list(command)
        self._environment = dict(environment)
        self._ready_path = ready_path
        self._process: subprocess.Popen[bytes] | None = None
        self._port = port

    def __enter__(self) -> Self:
        _terminate_in_order()
        port = _free_port(self._port)
        self.url = f"http://127.0.0.1:{port}"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # A group of its own: Ctrl-C in the terminal reaches us alone, and the server is ended once, in its own time.
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(port)],
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        try:
            self._wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Of the process that runs inside the context."""
        assert self._process is not None
        return self._process.pid

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise ServerFailedError(f"The server ended with code {self._process.returncode}: {self._last_line()} ({self.log_path})")
                try:
                    if client.get(f"{self.url}{self._ready_path}").is_success:
                        return
                except httpx.HTTPError:
                    pass  # not listening yet
                time.sleep(0.25)
        raise ServerFailedError(f"The server was not ready within {START_SECONDS:.0f} s: {self._last_line()} ({self.log_path})")

    def _end(self) -> None:
        """As Ctrl-C does; killed if that takes a minute, or somebody presses it again. Nothing is left running."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # killed below
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def _last_line(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


class LocalServer(LocalProgram):
    """`online-sao serve` on ``data_dir``. ``settings``: dotted names as in the settings file, "learning.threads": "1"."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str], port: int = 0) -> None:
        self.data_dir = data_dir
        variables = {f"ONLINE_SAO_{name.upper().replace('.', '__')}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "online_sao.cli", "serve", "--data-dir", str(data_dir)]
        super().__init__(command, data_dir, variables, ready_path="/readyz", port=port)


def _terminate_in_order() -> None:
    """From now on SIGTERM unwinds this program, as Ctrl-C does: left to its default it would end at once, and its servers would stay."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _free_port(wanted: int) -> int:
    """``wanted``, or any free one for 0. Raises ServerFailedError where something listens there already: it would be taken for our own server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise ServerFailedError(
                f"Port {wanted} cannot be had ({error.strerror}). Stop what listens there, or choose another with --port."
            ) from error
        return int(probe.getsockname()[1])
