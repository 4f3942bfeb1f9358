"""A bounded file of records that outlive the process, for while the database is away. Owns its format, its bound, and what a crash leaves of it.

A record is one line: CRC-32 of the rest, a space, JSON. ``append`` returns when it is on disk. A file belongs to the process that holds its lock,
which the kernel gives up with the process: what a killed one left is taken over by the next that looks. Records are read in the order they were
written; whoever reads them acts first and calls ``advance`` then, so after a crash some come twice. Knows nothing of what records say. Not for
several threads at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import uuid
import zlib
from pathlib import Path
from typing import Any

from online_sao.durable import sync

logger = logging.getLogger(__name__)

SUFFIX = ".spool"
_CHUNK = 1 << 16

Record = dict[str, Any]


class SpoolFullError(Exception):
    """The record would take the spool past its bound. Nothing of it was kept."""


class Spool:
    """The files of ``folder`` that this process holds: its own, made when it is first needed, and those it took over. ``limit_bytes`` bounds them all
    together; 0: nothing is ever kept."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._own: _File | None = None
        self._adopted: list[_File] = []

    @property
    def bytes(self) -> int:
        """What is on disk, records that were read included until their whole file is."""
        return sum(file.size for file in self._files)

    @property
    def records(self) -> int:
        """Those not read yet."""
        return sum(file.unread for file in self._files)

    def adopt(self) -> int:
        """Take over the files of processes that are gone. Returns how many records they hold. Raises OSError."""
        found = 0
        for path in sorted(self._folder.glob(f"*{SUFFIX}")) if self._folder.is_dir() else ():
            if any(file.path == path for file in self._files):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process was quicker, and is done with it
                file = _File.take_over(path)
                if file is not None and file.unread:
                    self._adopted.append(file)
                    found += file.unread
                elif file is not None:
                    file.remove()
        return found

    def append(self, record: Record, spare: int = 0) -> None:
        """On disk when this returns. ``spare``: bytes that must stay free besides. Raises SpoolFullError, or OSError; nothing is kept then."""
        payload = json.dumps(record, separators=(",", ":")).encode()
        line = b"%08x %s\n" % (zlib.crc32(payload), payload)
        if self.bytes + len(line) + spare > self.limit_bytes:
            raise SpoolFullError
        if self._own is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._own = _File.create(self._folder)
        self._own.append(line)

    def peek(self, count: int = 1) -> list[Record]:
        """The oldest records not read yet, ``count`` at most and of one file, other processes' first. Empty: there is none. Raises OSError."""
        for file in self._files:
            records = file.peek(count)
            if records:
                return records
            self._discard(file)
        return []

    def advance(self, count: int = 1) -> None:
        """The first ``count`` records that ``peek`` gave are done with. A file whose last was among them leaves the disk."""
        file = self._reading
        file.advance(count)
        if not file.peek(1):
            self._discard(file)

    def mark_damaged(self) -> None:
        """What ``peek`` gave makes no sense although its checksum is right: the file is set aside rather than removed when it has been read."""
        self._reading.damaged = True

    def close(self) -> None:
        """Give up the locks. What was not read stays for the next process."""
        for file in self._files:
            file.close()
        self._own, self._adopted = None, []

    @property
    def _reading(self) -> _File:
        return next(file for file in self._files if file.unread)

    @property
    def _files(self) -> list[_File]:
        return [*self._adopted, *([self._own] if self._own is not None else [])]

    def _discard(self, file: _File) -> None:
        file.remove()
        if file is self._own:
            self._own = None
        else:
            self._adopted.remove(file)


class _File:
    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = 0
        self.unread = 0
        self.damaged = False
        self._descriptor = descriptor
        self._position = 0
        self._ahead: list[Record] = []

    @classmethod
    def create(cls, folder: Path) -> _File:
        name = uuid.uuid4().hex
        unnamed = folder / f"{name}.new"
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Locked before it has the name that others look for.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = folder / f"{name}{SUFFIX}"
            unnamed.rename(path)
            sync(folder)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path) -> _File | None:
        """None: it belongs to a living process."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink == 0:  # its holder removed it before it let go
            os.close(descriptor)
            return None
        file = cls(path, descriptor)
        file.size = os.fstat(descriptor).st_size
        file._count()
        return file

    def append(self, line: bytes) -> None:
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self.size + written)
            os.fsync(self._descriptor)
        except OSError:
            # What is left behind the end is overwritten by the next record, or found torn.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(line)
        self.unread += 1

    def peek(self, count: int) -> list[Record]:
        while len(self._ahead) < count and self._position < self.size:
            line = self._line()
            record = _parse(line)
            self._position += len(line)
            if record is not None:
                self._ahead.append(record)
            else:
                self.damaged = True
                logger.error("%s: a record is damaged and cannot be written to the database", self.path)
        return self._ahead[:count]

    def advance(self, count: int) -> None:
        del self._ahead[:count]
        self.unread -= count

    def remove(self) -> None:
        if self.damaged:
            aside = self.path.with_suffix(".damaged")
            self.path.rename(aside)
            logger.error("what could not be read of the spool is kept in %s", aside)
        else:
            self.path.unlink()
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def _count(self) -> None:
        """How many whole records there are. What follows the last of them was torn while it was written, and so was never acknowledged."""
        whole = 0
        while self._position < self.size:
            line = self._line()
            self._position += len(line)
            if _parse(line) is not None:
                self.unread += 1
                whole = self._position
        if whole < self.size:
            logger.warning("%s: its last record was torn (%d bytes); nobody was told that it was kept", self.path, self.size - whole)
        self.size, self._position = whole, 0

    def _line(self) -> bytes:
        """From the position to the end of the line, or of the file."""
        parts: list[bytes] = []
        position = self._position
        while position < self.size:
            chunk = os.pread(self._descriptor, min(_CHUNK, self.size - position), position)
            if not chunk:
                raise OSError(f"{self.path} is shorter than it was")
            end = chunk.find(b"\n") + 1
            parts.append(chunk[:end] if end else chunk)
            if end:
                break
            position += len(chunk)
        return b"".join(parts)


def _parse(line: bytes) -> Record | None:
    """None: torn or damaged."""
    checksum, _, payload = line.partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(payload[:-1]):
        return None
    record = json.loads(payload)
    return record if isinstance(record, dict) else None
