"""docs/walkthrough.md and the README's example, run as they stand against a real service: bundled model, learner, defaults."""

import contextlib
import io
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import ROOT

DOCUMENTED_ADDRESS = "127.0.0.1:8000"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data_dir = tmp_path_factory.mktemp("walkthrough")
    command = [sys.executable, "-m", "online_sao.cli", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    with (data_dir / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    break
            time.sleep(0.5)
        else:
            pytest.fail((data_dir / "server.log").read_text())
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def blocks(path: Path) -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in BLOCK.findall(path.read_text())]


def run(source: str, address: str, namespace: dict[str, Any]) -> str:
    assert DOCUMENTED_ADDRESS in source or namespace
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source.replace(DOCUMENTED_ADDRESS, address), "block", "exec"), namespace)
    return printed.getvalue()


def shape(output: str) -> str:
    """What must be the same on every run: not ids, numbers, or what the model said."""
    output = re.sub(r"says: .*", "says: …", output, flags=re.DOTALL)  # the last that is printed; an answer may have several lines
    output = re.sub(r"\b(chatcmpl|fb)-\w+", r"\1-…", output)
    output = re.sub(r"(queued → )(trained → )?live", "queued → live", output)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", output).strip()


@pytest.fixture
def namespace() -> Iterator[dict[str, Any]]:
    """What the blocks define. They leave their clients open, as people do in a shell."""
    names: dict[str, Any] = {}
    yield names
    for name in ("client", "service"):
        if name in names:
            names[name].close()


def test_the_walkthrough_runs_as_written_and_ends_live(address: str, namespace: dict[str, Any]) -> None:
    last: str | None = None
    compared = 0
    for kind, text in blocks(ROOT / "docs" / "walkthrough.md"):
        if kind == "python":
            last = run(text, address, namespace)
        elif kind == "text" and last is not None:
            assert shape(last) == shape(text)
            last, compared = None, compared + 1
    assert compared == 4
    assert namespace["receipt"]["status"] == "live"
    assert namespace["receipt"]["update"] == namespace["receipt"]["policy_version"] == 1
    assert namespace["receipt"]["masked_fraction"] == 0.0
    assert namespace["answer"].system_fingerprint == "smollm2-135m@v1"


def test_the_readme_example_runs_as_written(address: str, namespace: dict[str, Any]) -> None:
    (source,) = [text for kind, text in blocks(ROOT / "README.md") if kind == "python"]
    assert run(source, address, namespace).split()[0] == "queued"
