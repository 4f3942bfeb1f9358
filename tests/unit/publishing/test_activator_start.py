"""Where the engine starts: on the active version, or on the newest whole one where that is damaged."""

import time

from online_sao.publishing import lifecycle
from online_sao.publishing.activator import Activator
from online_sao.publishing.policy_store import write_version
from online_sao.publishing.published import PublishedVersions
from online_sao.storage.repositories import policies
from online_sao.storage.tables import PolicyVersionRow
from online_sao.types import VersionState


async def publish(database, store, version, *, parent=None, epoch=0, served=True):
    def write(folder):
        (folder / "adapter_model.safetensors").write_bytes(bytes([version]) * 32)

    folder = write_version(
        store,
        version=version,
        parent=version - 1 if parent is None else parent,
        lineage_epoch=epoch,
        update=version,
        served_digest=(1.0,),
        base_digest="base",
        write_files=write,
    )
    now = time.time()
    row = PolicyVersionRow(
        version=version,
        parent=version - 1 if parent is None else parent,
        lineage_epoch=epoch,
        state=VersionState.STAGED,
        update_number=version,
        path=folder.name,
        served_digest=[1.0],
        created_at=now,
    )
    async with database.write() as session:
        await policies.insert(session, row)
    if not served:
        return folder
    async with database.write() as session:
        await lifecycle.move_version(session, version, VersionState.VERIFIED, now=now)
        await lifecycle.activate(session, version, now)
    return folder


async def test_it_starts_on_the_newest_version_that_is_whole(database, tmp_path):
    folders = {version: await publish(database, tmp_path, version) for version in (1, 2, 3)}
    activator = Activator(database, None, PublishedVersions(tmp_path, "base"))
    assert (await activator.start_version()).policy_version == 3
    for damaged in (3, 2):
        (folders[damaged] / "adapter_model.safetensors").write_bytes(b"torn")
    start = await activator.start_version()
    assert (start.policy_version, start.adapter_dir) == (1, folders[1])
    async with database.read() as session:
        assert (await policies.active(session)).version == 1
        failed = await policies.get(session, 3)
    assert failed.state == VersionState.FAILED
    assert "checksum" in failed.reason


async def test_the_base_model_is_always_left(database, tmp_path):
    folder = await publish(database, tmp_path, 1)
    (folder / "adapter_model.safetensors").unlink()
    start = await Activator(database, None, PublishedVersions(tmp_path, "base")).start_version()
    assert (start.policy_version, start.adapter_dir) == (0, None)
