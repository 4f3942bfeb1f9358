"""What TensorBoard would read back: every update once, whatever was killed in between."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from online_sao.runtime.tensorboard import MetricFiles, TensorBoardLog
from online_sao.storage.repositories import updates
from online_sao.storage.tables import UpdateRow


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """tag → (step, value), as TensorBoard shows them: a START event takes back the steps from its own on."""
    found: dict[str, dict[int, float]] = {}
    for file in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        data = file.read_bytes()
        position = 0
        while position < len(data):
            (length,) = struct.unpack_from("<Q", data, position)
            event = Event.FromString(data[position + 12 : position + 12 + length])
            position += 12 + length + 4
            if event.session_log.status == SessionLog.START:
                for points in found.values():
                    for step in [step for step in points if step >= event.step]:
                        del points[step]
            for value in event.summary.value:
                points = found.setdefault(value.tag, {})
                assert event.step not in points, f"{value.tag} has step {event.step} twice"
                points[event.step] = value.simple_value
    return {tag: sorted(points.items()) for tag, points in found.items()}


def row(number: int, **metrics: float | None) -> UpdateRow:
    return UpdateRow(
        update_number=number,
        lineage_epoch=0,
        claim_id=f"c{number}",
        policy_version=number,
        parent_version=number - 1,
        accepted=True,
        metrics=metrics or {"policy/entropy": float(number)},
        ratio_histogram={},
        started_at=1.0,
        finished_at=float(number),
    )


async def add(database, *rows: UpdateRow) -> None:
    async with database.write() as session:
        for item in rows:
            await updates.insert(session, item)


async def test_updates_are_written_once_over_restarts(database, tmp_path):
    folder = tmp_path / "tensorboard"
    log = TensorBoardLog(database, folder)
    await log.advance()
    assert not folder.exists(), "nothing to say yet"
    await add(database, row(1), row(2, **{"policy/entropy": 2.0, "value/loss": None}))
    await log.advance()
    await log.advance()
    await log.close()
    await add(database, row(3))
    again = TensorBoardLog(database, folder)
    await again.advance()
    await again.close()
    assert curves(folder) == {"policy/entropy": [(1, 1.0), (2, 2.0), (3, 3.0)]}


async def test_what_a_killed_process_wrote_beyond_its_mark_is_written_again_and_not_twice(database, tmp_path):
    files = MetricFiles(tmp_path)
    files.write(1, {"policy/entropy": 1.0}, 1.0)
    files.flush()
    files.write(2, {"policy/entropy": 9.0}, 2.0)
    files._writer.close()  # on disk, and killed before the mark was moved
    await add(database, row(1), row(2))
    log = TensorBoardLog(database, tmp_path)
    await log.advance()
    await log.close()
    assert curves(tmp_path)["policy/entropy"] == [(1, 1.0), (2, pytest.approx(2.0))]
