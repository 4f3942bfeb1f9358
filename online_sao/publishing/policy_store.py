"""The policy store: a folder of immutable published versions, and how one is written and checked.

Owns the layout ``v000007/{manifest.json, adapter files}``, the write order (temporary name, fsync, checksum, rename) and the checksums.
Knows nothing of the database, of who publishes, or of what the files mean to a model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from online_sao.durable import sync, sync_tree
from online_sao.errors import PolicyStoreError

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class VersionManifest:
    """What a version folder says of itself. ``files``: file name → sha256 of its content, hexadecimal (the manifest itself not included).

    ``served_digest``: expected fingerprint of the served weights (models.fingerprint). ``base_digest``: the base model they belong to.
    ``update``: number of the update that made the version.
    """

    version: int
    parent: int | None
    lineage_epoch: int
    update: int
    served_digest: tuple[float, ...]
    base_digest: str
    files: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "served_digest": list(self.served_digest)}

    @classmethod
    def from_json(cls, data: Any) -> VersionManifest:
        """Raises PolicyStoreError where a field is missing, unknown or of another type."""
        try:
            manifest = cls(**{**data, "served_digest": tuple(float(x) for x in data["served_digest"])})
            numbers = (manifest.version, manifest.lineage_epoch, manifest.update)
            well_typed = all(type(n) is int for n in numbers) and isinstance(manifest.base_digest, str) and isinstance(manifest.files, dict)
        except (TypeError, KeyError, ValueError) as error:
            raise PolicyStoreError(f"the manifest is not of the expected form: {error}") from error
        if not well_typed:
            raise PolicyStoreError("the manifest is not of the expected form: a field has another type")
        return manifest


def version_dir(store: Path, version: int) -> Path:
    """Where ``version`` lives in the store, present or not."""
    return store / f"v{version:06d}"


def write_version(
    store: Path,
    *,
    version: int,
    parent: int | None,
    lineage_epoch: int,
    update: int,
    served_digest: tuple[float, ...],
    base_digest: str,
    write_files: Callable[[Path], object],
) -> Path:
    """Publish one version whole or not at all. ``write_files(folder)`` puts the adapter's files into the (temporary) folder it is given.

    Writing a version again is allowed until its row exists (a crash, or an update discarded for its epoch, leaves such folders): an intact
    folder of exactly this content stays, any other is replaced. Returns the final folder.
    """
    store.mkdir(parents=True, exist_ok=True)
    final = version_dir(store, version)
    temporary = store / f"tmp-{final.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    try:
        write_files(temporary)
        manifest = VersionManifest(
            version=version,
            parent=parent,
            lineage_epoch=lineage_epoch,
            update=update,
            served_digest=tuple(served_digest),
            base_digest=base_digest,
            files=checksums(temporary),
        )
        if not manifest.files:
            raise PolicyStoreError(f"version {version} has no files to publish")
        (temporary / MANIFEST).write_text(json.dumps(manifest.to_json(), indent=1), encoding="utf-8")
        sync_tree(temporary)
        _put_in_place(temporary, final, manifest)
        sync(store)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def read_manifest(folder: Path) -> VersionManifest:
    """Raises PolicyStoreError if there is none that can be read."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyStoreError(f"{folder}: no readable {MANIFEST}: {error}") from error
    return VersionManifest.from_json(data)


def verify(folder: Path, *, base_digest: str | None = None) -> VersionManifest:
    """Check every file of a version folder against its manifest; ``base_digest``, if given, against the manifest's.

    Reads all bytes: not on the event loop. Raises PolicyStoreError naming the file at fault.
    """
    manifest = read_manifest(folder)
    found = checksums(folder)
    for name, expected in manifest.files.items():
        if name not in found:
            raise PolicyStoreError(f"{folder}: {name} is missing")
        if found[name] != expected:
            raise PolicyStoreError(f"{folder}: {name} has checksum {found[name][:12]}…, the manifest says {expected[:12]}…")
    unknown = sorted(set(found) - set(manifest.files))
    if unknown:
        raise PolicyStoreError(f"{folder}: {unknown[0]} is not in the manifest")
    if base_digest is not None and manifest.base_digest != base_digest:
        raise PolicyStoreError(f"{folder} belongs to base model {manifest.base_digest[:12]}…, this server has {base_digest[:12]}…")
    return manifest


def remove_versions(store: Path, folders: Iterable[str]) -> list[str]:
    """Remove those of the named version folders that are there, each under another name first, so that none is ever seen half gone. Blocks.

    Returns which were there. Whoever asks has told the database already: a reader must not come to count on files that are going.
    """
    present = {path.name for path in store.iterdir()} if store.is_dir() else set()
    removed = sorted(present & set(folders))
    for name in removed:
        aside = store / f"tmp-removed-{name}-{uuid.uuid4().hex[:8]}"
        (store / name).rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    return removed


def remove_leftovers(store: Path) -> int:
    """Remove temporary folders that a killed writer or remover left. Only the writer may call this, when it is not writing. Returns how many."""
    leftovers = list(store.glob("tmp-*")) if store.is_dir() else []
    for folder in leftovers:
        shutil.rmtree(folder, ignore_errors=True)
    return len(leftovers)


def _put_in_place(temporary: Path, final: Path, manifest: VersionManifest) -> None:
    if final.exists():
        try:
            if verify(final) == manifest:
                return
        except PolicyStoreError:
            pass
        aside = final.parent / f"tmp-replaced-{final.name}-{uuid.uuid4().hex[:8]}"
        final.rename(aside)
        temporary.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        temporary.rename(final)


def checksums(folder: Path) -> dict[str, str]:
    """Relative name → sha256 of every file below ``folder``, the manifest left out."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST:
            with path.open("rb") as file:
                sums[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums
