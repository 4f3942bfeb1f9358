"""Policy versions without files, walked through their states the way a publisher and an activator do."""

from __future__ import annotations

from online_sao.publishing import lifecycle
from online_sao.storage.repositories import policies
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
