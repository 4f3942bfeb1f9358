"""What a version must show before and after an engine loads it: files with right checksums, of the publication that the database names, and the
served digest that was published. Knows nothing of when."""

from __future__ import annotations

import asyncio
from pathlib import Path

from online_sao.errors import PolicyStoreError
from online_sao.models.fingerprint import ServedDigest
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


def check_digest(expected: tuple[float, ...], served: ServedDigest) -> None:
    """Raises PolicyStoreError unless the weights in place are those that were published."""
    # Version 0 is the base model itself: nobody published an expectation for it.
    if expected and not served.matches(expected):
        raise PolicyStoreError("The served digest differs from the published one: the weights in place are not this version's.")
