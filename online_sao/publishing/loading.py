"""What a version must show before and after an engine loads it: files with right checksums, and the served digest that was published."""

from __future__ import annotations

import asyncio
from pathlib import Path

from online_sao.errors import PolicyStoreError
from online_sao.models.fingerprint import matches
from online_sao.publishing.policy_store import verify
from online_sao.types import PolicyVersion


async def checked_folder(store: Path, base_digest: str, version: PolicyVersion) -> Path | None:
    """The version's adapter folder, every checksum right; None for the base model. Raises PolicyStoreError."""
    if version.path is None:
        if version.version != 0:
            raise PolicyStoreError(f"Policy version {version.version} names no folder.")
        return None
    folder = store / version.path
    manifest = await asyncio.to_thread(verify, folder, base_digest=base_digest)
    if (manifest.version, manifest.lineage_epoch, manifest.served_digest) != (version.version, version.lineage_epoch, version.served_digest):
        raise PolicyStoreError(f"{folder} holds version {manifest.version} of another publication than the database's version {version.version}.")
    return folder


def check_digest(expected: tuple[float, ...], served: tuple[float, ...]) -> None:
    """Raises PolicyStoreError unless the weights in place are those that were published."""
    # Version 0 is the base model itself: nobody published an expectation for it.
    if expected and not matches(expected, served):
        raise PolicyStoreError("The served digest differs from the published one: the weights in place are not this version's.")
