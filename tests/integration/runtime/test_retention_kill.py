"""kill -9 while retention works: at no moment does a row promise files that are gone, and the next sweep finishes what was begun."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from versions import publish

from online_sao.config import RetentionSettings
from online_sao.publishing.policy_store import verify
from online_sao.runtime.retention import Retention
from online_sao.service.erasure import ErasureService
from online_sao.storage.migrations import upgrade
from online_sao.storage.repositories import policies
from online_sao.storage.session import Database

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = 8

SWEEP = """
import asyncio, os, pathlib, shutil, signal, sys
from online_sao.config import RetentionSettings
from online_sao.runtime.retention import Retention
from online_sao.service.erasure import ErasureService
from online_sao.storage.session import Database

def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)

url, store, point = sys.argv[1:]
if point == "before the first rename":
    pathlib.Path.rename = die
elif point == "after a rename":
    shutil.rmtree = die
database = Database(url)
settings = RetentionSettings(keep_versions=3, keep_every=5)
asyncio.run(Retention(database, pathlib.Path(store), settings, ErasureService(database)).sweep_versions())
"""


async def promised(database: Database) -> list[int]:
    async with database.read() as session:
        return sorted(row.version for row in await policies.with_files(session))


@pytest.mark.parametrize("point", ["before the first rename", "after a rename"])
async def test_killed(tmp_path: Path, point: str) -> None:
    url, store = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}", tmp_path / "store"
    await asyncio.to_thread(asyncio.run, upgrade(url))
    database = Database(url)
    await publish(database, store, VERSIONS)
    command = [sys.executable, "-c", SWEEP, url, str(store), point]
    ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert await promised(database) == [5, 6, 7, 8]
    for version in await promised(database):
        verify(store / f"v{version:06d}", base_digest="base")
    left = sorted(path.name for path in store.glob("v*"))
    assert len(left) == (8 if point == "before the first rename" else 7)

    settings = RetentionSettings(keep_versions=3, keep_every=5)
    await Retention(database, store, settings, ErasureService(database)).sweep_versions()
    assert sorted(path.name for path in store.glob("v*")) == [f"v{version:06d}" for version in (5, 6, 7, 8)]
    await database.dispose()
