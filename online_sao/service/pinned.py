"""Versions that clients ask for by number. Owns which of them may be had: those that have served, as long as their files are kept. Knows nothing of
HTTP, nor of how an engine has several."""

from __future__ import annotations

from collections.abc import Sequence

from online_sao.errors import PolicyStoreError, VersionNotLoadedError
from online_sao.inference.engine import PinnedVersion
from online_sao.publishing.published import PublishedVersions
from online_sao.storage.repositories import policies
from online_sao.storage.session import Database
from online_sao.types import VersionState


class PinnedVersions:
    def __init__(self, database: Database, published: PublishedVersions) -> None:
        self._database = database
        self._published = published
        self._checked: dict[int, PinnedVersion] = {}

    async def find(self, version: int) -> PinnedVersion:
        """Its files are checked once. Raises VersionNotLoadedError saying why it cannot be had."""
        async with self._database.read() as session:
            row = await policies.get(session, version)
            record = policies.to_record(row) if row is not None else None
        if row is None or record is None:
            raise _not_loaded(version, "there is none")
        if record.state not in (VersionState.ACTIVE, VersionState.RETIRED):
            raise _not_loaded(version, f"it is {record.state.value} and has not served")
        if row.files_removed_at is not None:
            self._checked.pop(version, None)
            raise _not_loaded(version, "its files were removed by retention (retention.keep_versions)")
        if version not in self._checked:
            try:
                folder = await self._published.checked_folder(record)
            except PolicyStoreError as error:
                raise _not_loaded(version, f"its files are damaged: {error.message}") from error
            self._checked[version] = PinnedVersion(version, folder, record.served_digest)
        return self._checked[version]

    async def available(self) -> Sequence[int]:
        """Those that may be had beside the active one, newest first."""
        async with self._database.read() as session:
            return [row.version for row in await policies.served_once(session)]


def _not_loaded(version: int, why: str) -> VersionNotLoadedError:
    return VersionNotLoadedError(f"Version {version} cannot be served: {why}.", param="model")
