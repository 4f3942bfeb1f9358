"""The doctor's checks of what is kept: the database's schema, and the policy store against it. Reads only."""

from __future__ import annotations

import asyncio
from pathlib import Path

from safetensors import SafetensorError, safe_open

from online_sao.config import Settings
from online_sao.errors import ConfigurationError, PolicyStoreError, StorageError
from online_sao.publishing.policy_store import verify
from online_sao.runtime.doctor import Check
from online_sao.storage.migrations import require_current
from online_sao.storage.repositories import learner, policies
from online_sao.storage.session import Database, sqlite_path
from online_sao.types import VersionState

VERSIONS = 10_000
"""Newest versions looked at."""


async def database(settings: Settings) -> Check:
    path = sqlite_path(settings.database_url)
    shown = str(path or settings.database_url.split("@")[-1])
    if path is not None and not path.exists():
        return Check("database", "ok", f"none yet at {shown}; `online-sao serve` makes it")
    connection = Database(settings.database_url)
    try:
        await require_current(connection)
        damage = await connection.damage()
        if damage is not None:
            return Check("database", "fail", f"{shown} is damaged: {damage}", "Restore it from a backup.")
        async with connection.read() as session:
            active = (await policies.active(session)).version
            row = await learner.get(session)
    except ConfigurationError as error:
        return Check("database", "fail", shown, error.message)
    except StorageError as error:
        return Check("database", "fail", f"{shown} cannot be read: {error.message}", "If it is damaged, restore it from a backup.")
    finally:
        await connection.dispose()
    found = f"{shown}, at the newest schema; version {active} is active"
    if row.paused:
        return Check("database", "warn", f"{found}; the learner is paused: {row.pause_reason}", "Resume it when the reason is gone.")
    return Check("database", "ok", found)


def checkpoints(settings: Settings) -> Check:
    """Whether the learner's tensors can be read: every file's header, and that it is as long as that says."""
    files = sorted(settings.checkpoints_dir.rglob("*.safetensors"))
    damaged = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                tensors.keys()
        except FileNotFoundError:
            continue  # the learner that runs beside it keeps the newest few only
        except (OSError, SafetensorError) as error:
            damaged[file] = error
    if damaged:
        file = max(damaged)
        found = f"{len(damaged)} files cannot be read: {file.relative_to(settings.checkpoints_dir)} ({damaged[file]})"
        return Check(
            "checkpoints", "fail", found, "Restore the folder from a backup, or roll back: the learner then stands on the published weights."
        )
    return Check("checkpoints", "ok", f"{len(files)} files of tensors, each whole" if files else "none yet: nothing has been learned")


async def policy_store(settings: Settings) -> Check:
    """Every version that the database says has files, byte for byte; and folders that it does not know."""
    path = sqlite_path(settings.database_url)
    if path is not None and not path.exists():
        return Check("policy store", "ok", "empty: nothing has been learned yet")
    connection = Database(settings.database_url)
    try:
        async with connection.read() as session:
            rows = await policies.newest(session, VERSIONS)
            head = (await learner.get(session)).head_version
    finally:
        await connection.dispose()
    store = settings.policy_store_dir
    expected = {row.path: row for row in rows if row.path is not None and row.files_removed_at is None and row.state != VersionState.FAILED}
    known = {row.path for row in rows if row.path is not None}
    damaged = await asyncio.to_thread(_damaged, store, list(expected))
    needed = [name for name in damaged if expected[name].state == VersionState.ACTIVE or expected[name].version == head]
    if needed:
        return Check(
            "policy store",
            "fail",
            damaged[needed[0]],
            "The version that serves, or that the learner stands on, is damaged. Restore the folder from a backup, or roll back to another version.",
        )
    if damaged:
        name = next(iter(damaged))
        return Check("policy store", "warn", f"{len(damaged)} damaged: {damaged[name]}", "Nobody can roll back to them. Restore a backup if wanted.")
    orphans = sorted(folder.name for folder in store.iterdir() if folder.is_dir() and folder.name not in known) if store.is_dir() else []
    if orphans:
        return Check(
            "policy store",
            "warn",
            f"{len(expected)} versions intact; {len(orphans)} folders without a version ({orphans[0]})",
            "Left by a process that was killed; the learner clears or replaces them. With everything stopped they may be removed.",
        )
    return Check("policy store", "ok", f"{len(expected)} versions, every file as it was published")


def _damaged(store: Path, names: list[str]) -> dict[str, str]:
    """Name → what is wrong with it."""
    found = {}
    for name in names:
        try:
            verify(store / name)
        except PolicyStoreError as error:
            found[name] = error.message
    return found
