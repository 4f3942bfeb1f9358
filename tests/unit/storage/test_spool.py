"""The spool's file: what is acknowledged is read back in order, whatever a crash or the disk did to the rest."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_sao.storage.spool import Spool, SpoolFullError


def drain(spool: Spool) -> list[dict[str, Any]]:
    found = []
    while records := spool.peek(2):
        found += records
        spool.advance(len(records))
    return found


def left_behind(folder: Path, records: list[dict[str, Any]]) -> Path:
    """The file of a process that wrote these and died."""
    spool = Spool(folder, 1_000_000)
    for record in records:
        spool.append(record)
    spool.close()
    (file,) = folder.glob("*.spool")
    return file


RECORDS = [{"n": number, "text": "é\n\ud800\0" * number} for number in range(5)]


def test_in_order_and_gone_when_read(tmp_path):
    spool = Spool(tmp_path / "spool", 10_000)
    assert (spool.records, spool.bytes, spool.peek()) == (0, 0, [])
    for record in RECORDS[:3]:
        spool.append(record)
    assert spool.records == 3
    assert spool.bytes == sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()) > 0
    assert spool.peek() == spool.peek() == RECORDS[:1]
    assert spool.peek(2) == RECORDS[:2]
    spool.advance()
    spool.append(RECORDS[3])
    assert drain(spool) == RECORDS[1:4]
    assert (spool.records, spool.bytes, list((tmp_path / "spool").iterdir())) == (0, 0, [])
    spool.append(RECORDS[4])
    assert drain(spool) == [RECORDS[4]]


def test_it_holds_its_bound_and_what_must_stay_free(tmp_path):
    spool = Spool(tmp_path, 100)
    spool.append({"a": "x" * 40})
    used = spool.bytes
    with pytest.raises(SpoolFullError):
        spool.append({"a": "x" * 40})
    with pytest.raises(SpoolFullError):
        spool.append({"a": ""}, spare=100 - used)
    spool.append({"a": ""})
    assert spool.bytes <= 100
    assert drain(spool) == [{"a": "x" * 40}, {"a": ""}]
    with pytest.raises(SpoolFullError):
        Spool(tmp_path / "never", 0).append({})
    assert not (tmp_path / "never").exists()


def test_the_files_of_the_living_are_left_alone_and_those_of_the_dead_come_first(tmp_path):
    living, dead = Spool(tmp_path, 10_000), Spool(tmp_path, 10_000)
    living.append({"of": "living"})
    dead.append({"of": "dead"})
    dead.close()
    heir = Spool(tmp_path, 10_000)
    heir.append({"of": "heir"})
    assert heir.adopt() == 1
    assert heir.adopt() == 0
    assert drain(heir) == [{"of": "dead"}, {"of": "heir"}]
    assert drain(living) == [{"of": "living"}]
    assert list(tmp_path.iterdir()) == []


@given(st.integers(min_value=0, max_value=400))
def test_cut_off_anywhere_the_whole_records_before_are_read(cut: int):
    with tempfile.TemporaryDirectory() as name:
        file = left_behind(Path(name), RECORDS)
        content = file.read_bytes()
        file.write_bytes(content[:cut])
        whole = content[:cut].count(b"\n")
        heir = Spool(Path(name), 1_000_000)
        assert heir.adopt() == whole
        assert drain(heir) == RECORDS[:whole]
        assert list(Path(name).iterdir()) == []


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_damaged_anywhere_the_other_records_are_read_and_the_file_is_kept(place: int, flip: int):
    with tempfile.TemporaryDirectory() as name:
        file = left_behind(Path(name), RECORDS)
        content = bytearray(file.read_bytes())
        place %= len(content)
        hit = bytes(content[:place]).count(b"\n")
        was = content[place]
        content[place] ^= flip
        file.write_bytes(content)
        heir = Spool(Path(name), 1_000_000)
        heir.adopt()
        found = drain(heir)
        lost = {hit, hit + 1} if was == ord("\n") else {hit}  # a line end that is lost joins two records
        assert found == [record for number, record in enumerate(RECORDS) if number not in lost]
        torn = max(lost) >= len(RECORDS) - 1  # who knows whether the last one was ever acknowledged
        assert bool(list(Path(name).glob("*.damaged"))) == (not torn)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_keeps_nothing_of_the_record_and_everything_before(tmp_path):
    spool = Spool(tmp_path, 1_000_000)
    spool.append({"first": 1})
    with largest_file(spool.bytes + 10), pytest.raises(OSError, match="large"):
        spool.append({"second": "x" * 100})
    spool.append({"third": 3})
    spool.close()
    heir = Spool(tmp_path, 1_000_000)
    assert heir.adopt() == 2
    assert drain(heir) == [{"first": 1}, {"third": 3}]
    assert list(tmp_path.iterdir()) == []
