"""The policy store: whole or not at all, and every byte checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from online_sao.errors import PolicyStoreError
from online_sao.publishing.policy_store import read_manifest, remove_leftovers, verify, version_dir, write_version


def write(store: Path, version: int = 7, content: bytes = b"weights", digest: tuple[float, ...] = (0.5, -1.25)) -> Path:
    return write_version(
        store,
        version=version,
        parent=version - 1,
        lineage_epoch=2,
        update=9,
        served_digest=digest,
        base_digest="base",
        write_files=lambda folder: (folder / "adapter_model.safetensors").write_bytes(content),
    )


def test_a_written_version_verifies_and_says_what_it_is(tmp_path: Path) -> None:
    folder = write(tmp_path / "store")
    assert folder == tmp_path / "store" / "v000007" == version_dir(tmp_path / "store", 7)
    manifest = verify(folder, base_digest="base")
    assert (manifest.version, manifest.parent, manifest.lineage_epoch, manifest.update) == (7, 6, 2, 9)
    assert manifest.served_digest == (0.5, -1.25)
    assert list(manifest.files) == ["adapter_model.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["v000007"]


@pytest.mark.parametrize("damage", ["change", "truncate", "remove", "add", "manifest", "field"])
def test_any_damage_is_found(tmp_path: Path, damage: str) -> None:
    folder = write(tmp_path)
    file = folder / "adapter_model.safetensors"
    if damage == "change":
        file.write_bytes(b"weightS")
    elif damage == "truncate":
        file.write_bytes(b"")
    elif damage == "remove":
        file.unlink()
    elif damage == "add":
        (folder / "extra.bin").write_bytes(b"x")
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        data = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**data, "version": "7"}))
    with pytest.raises(PolicyStoreError):
        verify(folder)


def test_another_base_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyStoreError, match="belongs to base model"):
        verify(write(tmp_path), base_digest="other")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_version(tmp_path, version=1, parent=0, lineage_epoch=0, update=1, served_digest=(), base_digest="b", write_files=fail)
    assert list(tmp_path.iterdir()) == []


def test_writing_again_keeps_the_same_and_replaces_the_different(tmp_path: Path) -> None:
    inode = write(tmp_path).stat().st_ino
    assert write(tmp_path).stat().st_ino == inode
    assert write(tmp_path, content=b"other").stat().st_ino != inode
    assert (version_dir(tmp_path, 7) / "adapter_model.safetensors").read_bytes() == b"other"
    (version_dir(tmp_path, 7) / "adapter_model.safetensors").write_bytes(b"damaged")
    verify(write(tmp_path, content=b"other"))
    assert read_manifest(version_dir(tmp_path, 7)).update == 9
    assert [p.name for p in tmp_path.iterdir()] == ["v000007"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "tmp-v000008-abc").mkdir()
    assert remove_leftovers(tmp_path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["v000007"]
    assert remove_leftovers(tmp_path / "absent") == 0
