"""Policy versions, without files or with, walked through their states the way a publisher and an activator do."""

from __future__ import annotations

from pathlib import Path

from online_sao.publishing import lifecycle
from online_sao.publishing.policy_store import write_version
from online_sao.storage.repositories import learner, policies
from online_sao.storage.session import Database
from online_sao.storage.tables import PolicyVersionRow
from online_sao.types import VersionState


async def add_version(database: Database, number: int) -> None:
    """``number``, child of the version before it, now ACTIVE."""
    async with database.write() as session:
        row = PolicyVersionRow(
            version=number, parent=number - 1, lineage_epoch=0, update_number=number, path="p", served_digest=[1.0], created_at=float(number)
        )
        await policies.insert(session, row)
        await lifecycle.move_version(session, number, VersionState.VERIFIED, now=1.0)
        await lifecycle.activate(session, number, now=float(number))


async def publish(database: Database, store: Path, count: int) -> None:
    """Versions 1 to ``count`` with their files, each the child of the one before it; the last is ACTIVE, and the learner stands on it."""
    for version in range(1, count + 1):
        folder = write_version(
            store,
            version=version,
            parent=version - 1,
            lineage_epoch=0,
            update=version,
            served_digest=(1.0,),
            base_digest="base",
            write_files=lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"weights"),
        )
        async with database.write() as session:
            row = PolicyVersionRow(
                version=version, parent=version - 1, lineage_epoch=0, update_number=version, path=folder.name, served_digest=[1.0], created_at=1.0
            )
            await policies.insert(session, row)
            await lifecycle.move_version(session, version, VersionState.VERIFIED, now=1.0)
            await lifecycle.activate(session, version, now=1.0)
            await learner.set_head(session, head_version=version, head_update=version)
