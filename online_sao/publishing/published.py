"""The files of a published version, looked at before anything counts on them. Owns what makes a version's folder its own: every checksum, and that
database and manifest speak of one publication. Knows nothing of engines."""

from __future__ import annotations

import asyncio
from pathlib import Path

from online_sao.errors import PolicyStoreError
from online_sao.publishing.policy_store import verify
from online_sao.types import PolicyVersion


class PublishedVersions:
    """``store``: the policy store's folder. ``base_digest``: models.catalog.base_digest of the model being served."""

    def __init__(self, store: Path, base_digest: str) -> None:
        self._store = store
        self._base_digest = base_digest

    def folder(self, version: PolicyVersion) -> Path | None:
        """Where its adapter lies, unchecked; None for the base model."""
        return self._store / version.path if version.path is not None else None

    async def checked_folder(self, version: PolicyVersion) -> Path | None:
        """The same, every checksum right. Raises PolicyStoreError saying what is wrong."""
        folder = self.folder(version)
        if folder is None:
            if version.version != 0:
                raise PolicyStoreError(f"Policy version {version.version} names no folder.")
            return None
        manifest = await asyncio.to_thread(verify, folder, base_digest=self._base_digest)
        if (manifest.version, manifest.lineage_epoch, manifest.served_digest) != (version.version, version.lineage_epoch, version.served_digest):
            raise PolicyStoreError(f"{folder} holds version {manifest.version} of another publication than the database's version {version.version}.")
        return folder
