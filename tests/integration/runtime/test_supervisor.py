"""The learner's supervisor, with small real processes in the learner's place."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from online_sao.runtime import backoff
from online_sao.runtime import supervisor as module
from online_sao.runtime.supervisor import Supervisor

SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time, subprocess, sys\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
    "open(sys.argv[1], 'w').write(str(child.pid))\n"
    "time.sleep(60)",
]


async def polled(supervisor: Supervisor, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await supervisor.poll()
        await asyncio.sleep(0.02)


def _content(note: Path) -> str:
    return note.read_text() if note.exists() else ""


async def _written(note: Path) -> str:
    for _ in range(1000):
        if _content(note):
            return _content(note)
        await asyncio.sleep(0.02)
    raise AssertionError("the child wrote nothing in 20 s")


async def test_it_starts_one_child_and_ends_it() -> None:
    supervisor = Supervisor({}, SLEEPS)
    assert supervisor.pid is None
    await supervisor.poll()
    pid = supervisor.pid
    await supervisor.poll()
    assert pid is not None
    assert supervisor.pid == pid
    assert os.getpgid(pid) == pid
    await supervisor.stop()
    assert supervisor.pid is None
    assert not psutil.pid_exists(pid)
    await supervisor.poll()
    assert supervisor.pid is None


async def test_a_child_that_ends_is_started_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY_SECONDS", 0.1)
    log = tmp_path / "starts"
    supervisor = Supervisor({"WHERE": str(log)}, ["/bin/sh", "-c", 'date +%s.%N >> "$WHERE"; exit 3'])
    await polled(supervisor, 2.5)
    await supervisor.stop()
    starts = [float(line) for line in log.read_text().split()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    delays = [float(record.args[1]) for record in caplog.records if isinstance(record.args, tuple)]
    assert delays[:3] == [0.1, 0.2, 0.4]
    assert len(gaps) >= 2
    assert all(gap >= delay - 0.1 for gap, delay in zip(gaps, delays, strict=False)), gaps
    assert supervisor.restarts >= 2


async def test_a_killed_child_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY_SECONDS", 0.05)
    supervisor = Supervisor({}, SLEEPS)
    await supervisor.poll()
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await polled(supervisor, 0.7)
    assert supervisor.pid not in (None, first)
    await supervisor.stop()


async def test_one_that_ignores_the_request_is_killed_with_all_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "TERMINATE_SECONDS", 0.3)
    note = tmp_path / "grandchild"
    supervisor = Supervisor({}, [*STUBBORN, str(note)])
    await supervisor.poll()
    grandchild = psutil.Process(int(await _written(note)))
    started = time.monotonic()
    await supervisor.stop()
    assert 0.3 <= time.monotonic() - started < 3
    assert supervisor.pid is None
    psutil.wait_procs([grandchild], timeout=2)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


async def test_one_that_cannot_work_is_left_alone_until_something_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY_SECONDS", 0.05)
    log, cure = tmp_path / "starts", tmp_path / "cure"
    script = 'echo started >> "$WHERE"; test -e "$CURE" && exec sleep 60; exit 2'
    supervisor = Supervisor({"WHERE": str(log), "CURE": str(cure)}, ["/bin/sh", "-c", script])
    await polled(supervisor, 1.0)
    assert (supervisor.gave_up, _content(log).count("started"), supervisor.pid) == (True, 1, None)
    supervisor.retry()
    await polled(supervisor, 1.0)
    assert (supervisor.gave_up, _content(log).count("started")) == (True, 2), "tried once more, and given up again"
    cure.touch()
    supervisor.retry()
    await polled(supervisor, 0.5)
    assert (supervisor.gave_up, supervisor.pid is not None) == (False, True)
    await supervisor.stop()


async def test_one_that_is_told_to_come_back_later_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY_SECONDS", 0.05)
    log = tmp_path / "starts"
    supervisor = Supervisor({"WHERE": str(log)}, ["/bin/sh", "-c", 'echo started >> "$WHERE"; exit 3'])
    await polled(supervisor, 1.0)
    assert (supervisor.gave_up, _content(log).count("started") >= 2) == (False, True), "another learner's lease may end"
    await supervisor.stop()
