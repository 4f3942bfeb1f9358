"""Checkpoints: folders ``update-000123`` that appear whole or not at all. The rename of one is the commit point of its update (docs/design.md §7.3).

Owns the layout, the write order (temporary name, fsync of every file and folder, rename) and how many are kept. What a manifest says, beyond the
number in the folder's name, is the caller's. Knows nothing of models, databases or publishing. One writer at a time; all methods block.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from online_sao.durable import sync, sync_tree

MANIFEST = "manifest.json"
_NAME = re.compile(r"update-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``folder`` holds what the learner saved, and the manifest."""

    update_number: int
    folder: Path
    manifest: dict[str, Any]


class Checkpoints:
    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, update_number: int, manifest: Mapping[str, Any], save: Callable[[Path], object]) -> Checkpoint:
        """``save(folder)`` puts the state into a temporary folder. When this returns, the checkpoint survives a power cut.

        A checkpoint of the same number, which only a discarded update can have left, is replaced.
        """

        def save_all(folder: Path) -> None:
            save(folder)
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")

        self._remove(self._value_folder(update_number))
        final = self._folder(update_number)
        self._put(final, save_all)
        return Checkpoint(update_number, final, dict(manifest))

    def write_value(self, update_number: int, save: Callable[[Path], object]) -> None:
        """A value model pretrained after that update (0: before the first), which takes the place of the one in its checkpoint."""
        self._put(self._value_folder(update_number), save)

    def value(self, update_number: int) -> Path | None:
        """What ``write_value`` saved for that update, if anything."""
        folder = self._value_folder(update_number)
        return folder if folder.is_dir() else None

    def _put(self, final: Path, save: Callable[[Path], object]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary()
        temporary.mkdir()
        try:
            save(temporary)
            sync_tree(temporary)
            self._remove(final)
            temporary.rename(final)
            sync(self._root)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def all(self) -> list[Checkpoint]:
        """Oldest first. Folders under other names are left out, temporary ones among them."""
        found = []
        for folder in self._root.glob("update-*") if self._root.is_dir() else ():
            if match := _NAME.fullmatch(folder.name):
                found.append(Checkpoint(int(match[1]), folder, json.loads((folder / MANIFEST).read_text(encoding="utf-8"))))
        return sorted(found, key=lambda checkpoint: checkpoint.update_number)

    def get(self, update_number: int) -> Checkpoint | None:
        folder = self._folder(update_number)
        if not folder.is_dir():
            return None
        return Checkpoint(update_number, folder, json.loads((folder / MANIFEST).read_text(encoding="utf-8")))

    def remove(self, update_number: int) -> None:
        """Under a temporary name first, so that no half of it is ever taken for a checkpoint. Nothing happens if there is none."""
        self._remove(self._folder(update_number))
        self._remove(self._value_folder(update_number))

    def _remove(self, folder: Path) -> None:
        if folder.is_dir():
            aside = self._temporary()
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    def prune(self, keep: int) -> None:
        """Remove all but the newest ``keep``, and what was pretrained on one that is removed. A value model for the base stays."""
        for checkpoint in self.all()[:-keep]:
            self.remove(checkpoint.update_number)

    def remove_leftovers(self) -> int:
        """Remove temporary folders that a killed writer left. Returns how many there were."""
        leftovers = list(self._root.glob("tmp-*")) if self._root.is_dir() else []
        for folder in leftovers:
            shutil.rmtree(folder, ignore_errors=True)
        return len(leftovers)

    def _folder(self, update_number: int) -> Path:
        return self._root / f"update-{update_number:06d}"

    def _value_folder(self, update_number: int) -> Path:
        return self._root / f"value-{update_number:06d}"

    def _temporary(self) -> Path:
        return self._root / f"tmp-{uuid.uuid4().hex[:12]}"
