"""What the processes of a learner leave behind when they end: a word of why, and no thread."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from online_sao.config import Settings
from online_sao.errors import ConfigurationError
from online_sao.runtime.learning import live

RANK = """
import os, sys
from online_sao.runtime import ranks

def follow(settings):
    raise ValueError("what went wrong")

ranks.follow, ranks._initialise = follow, lambda *_, **__: None
ranks._follow_here(0, os.getppid(), {}, sys.argv[1])
"""
HOST = """
import os, sys
from types import SimpleNamespace
from online_sao.runtime.cluster.learner_host import LearnerHost

class PlacedLearner:
    def __init__(self, settings, stop): pass
    def run(self):
        print(os.nice(0), flush=True)
        os._exit(0)

sys.modules["online_sao.runtime.cluster.learner"] = SimpleNamespace(PlacedLearner=PlacedLearner)
LearnerHost({})
import time
time.sleep(60)
"""


def run(source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_rank_that_fails_says_why_before_it_ends(tmp_path: Path) -> None:
    ended = run(RANK, str(tmp_path / "store"), ONLINE_SAO_LEARNING__RANKS="2", ONLINE_SAO_SERVER__LOG_FORMAT="json")
    assert ended.returncode == 1
    line = json.loads(ended.stderr.splitlines()[-1])
    assert line["message"] == "rank 1 failed"
    assert line["exception"].endswith("ValueError: what went wrong")


def test_a_learner_that_ray_has_placed_steps_back_behind_serving() -> None:
    ended = run(HOST, ONLINE_SAO_LEARNING__NICENESS="7")
    assert ended.stdout.split() == [str(os.nice(0) + 7)], ended.stderr


async def test_one_that_cannot_begin_leaves_no_thread(tmp_path: Path) -> None:
    def threads() -> int:
        return sum(thread.name == "compute" for thread in threading.enumerate())

    before = threads()
    with pytest.raises(ConfigurationError):
        await live(Settings(storage={"data_dir": tmp_path}), asyncio.Event())
    async with asyncio.timeout(5):
        while threads() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_folder_of_a_model_is_the_same_from_every_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)

    def told(model: str) -> str:
        return Settings(policy={"model": model}).to_environment()["ONLINE_SAO_POLICY__MODEL"]

    assert told("mine") == str(tmp_path / "mine")
    assert [told("bundled"), told("someone/something")] == ["bundled", "someone/something"]
