"""Which versions a client may ask for by number, against a real database and policy store."""

from __future__ import annotations

import pytest
from versions import publish

from online_sao.errors import VersionNotLoadedError
from online_sao.publishing.published import PublishedVersions
from online_sao.service.pinned import PinnedVersions
from online_sao.storage.repositories import policies
from online_sao.storage.tables import PolicyVersionRow


@pytest.fixture
def pinned(database, tmp_path):
    return PinnedVersions(database, PublishedVersions(tmp_path, "base"))


async def test_whatever_served_and_has_its_files_can_be_had(database, tmp_path, pinned):
    await publish(database, tmp_path, 3)
    for version in (1, 2, 3):
        found = await pinned.find(version)
        assert (found.policy_version, found.adapter_dir, found.served_digest) == (version, tmp_path / f"v{version:06d}", (1.0,))
    base = await pinned.find(0)
    assert (base.policy_version, base.adapter_dir) == (0, None)
    assert await pinned.available() == [2, 1, 0]


async def test_what_cannot_be_had_is_refused_with_the_reason(database, tmp_path, pinned):
    await publish(database, tmp_path, 3)
    with pytest.raises(VersionNotLoadedError, match="there is none"):
        await pinned.find(9)
    async with database.write() as session:
        row = PolicyVersionRow(version=4, parent=3, lineage_epoch=0, update_number=4, path="v000004", served_digest=[1.0], created_at=1.0)
        await policies.insert(session, row)
    with pytest.raises(VersionNotLoadedError, match="staged and has not served"):
        await pinned.find(4)
    (tmp_path / "v000002" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(VersionNotLoadedError, match="damaged"):
        await pinned.find(2)
    assert (await pinned.find(1)).policy_version == 1
    async with database.write() as session:
        (await policies.get(session, 1)).files_removed_at = 1.0
    with pytest.raises(VersionNotLoadedError, match="removed by retention"):
        await pinned.find(1)
