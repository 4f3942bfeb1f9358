"""What is on disk after a power cut: fsync of files, and of the folders whose names point at them. Knows nothing of what the files are."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """fsync a file or a folder (a folder's fsync makes the names in it durable)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """fsync everything below a folder, and the folder: before the rename that reveals it, so that a torn one never is."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)
