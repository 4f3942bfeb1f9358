"""Every update's metrics as TensorBoard files: tag = metric name, step = update number. Owns the files and where they left off.

It reads what the database already has, so it can be switched on late, and killed at any instant. Knows nothing of what metrics mean.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from online_sao.storage.repositories import updates
from online_sao.storage.session import Database
from online_sao.storage.tables import UpdateRow

SECONDS = 5.0
"""Between two looks at the database."""
_LAST = "last_step"


class MetricFiles:
    """One run in ``folder``. A step is written once: a process that starts again goes on after the last one, and tells TensorBoard to forget what
    another process may have written beyond it before it died."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: EventsWriter | None = None
        mark = folder / _LAST
        self.last_step = int(mark.read_text()) if mark.is_file() else 0

    def write(self, step: int, metrics: Mapping[str, float | None], at: float) -> None:
        """Metrics that were not finite (null) are left out. ``at``: Unix seconds. Blocking; on disk when ``flush`` returns."""
        writer = self._open()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if value is not None]
        writer.write_event(Event(step=step, wall_time=at, summary=Summary(value=values)))
        self.last_step = step

    def _open(self) -> EventsWriter:
        # The package's own SummaryWriter hands events to a thread that its flush does not wait for: they would be lost with the process.
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Files are named by the second: a quick restart would overwrite the one before.
            self._writer = EventsWriter(str(self._folder / "events"), f".{uuid.uuid4().hex[:8]}")
            self._writer.write_event(Event(step=self.last_step + 1, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START)))
        return self._writer

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()
            temporary = self._folder / f"{_LAST}.tmp"
            temporary.write_text(str(self.last_step))
            temporary.rename(self._folder / _LAST)

    def close(self) -> None:
        if self._writer is not None:
            self.flush()
            self._writer.close()
            self._writer = None


class TensorBoardLog:
    """``advance`` every SECONDS in the process that leads; ``close`` at its end."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._files: MetricFiles | None = None

    async def advance(self) -> None:
        """Write the updates that came since the last time. Refused ones too: their metrics say why."""
        if self._files is None:
            self._files = await asyncio.to_thread(MetricFiles, self._folder)
        async with self._database.read() as session:
            rows = await updates.since(session, self._files.last_step)
        if rows:
            await asyncio.to_thread(self._write, self._files, rows)

    async def close(self) -> None:
        if self._files is not None:
            await asyncio.to_thread(self._files.close)

    @staticmethod
    def _write(files: MetricFiles, rows: Sequence[UpdateRow]) -> None:
        for row in rows:
            files.write(row.update_number, row.metrics, row.finished_at)
        files.flush()
