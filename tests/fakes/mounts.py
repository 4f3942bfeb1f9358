"""Small and read-only file systems for fault tests. A test that needs one is skipped, with the reason, where mounting is not allowed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def small_disk(folder: Path, megabytes: int) -> contextlib.AbstractContextManager[Path]:
    return _mounted(folder, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs")


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """``folder``, with what is in it, as nobody can write it: not even root."""
    with _mounted(folder, "--bind", str(folder)):
        done = subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"nothing can be remounted read-only here: {done.stderr.strip()}")
        yield folder


def fill(folder: Path) -> Path:
    """Write a file until not one block is left; remove it to have room again."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    if file.write(bytes(size)) < size:
                        break
    return filler
