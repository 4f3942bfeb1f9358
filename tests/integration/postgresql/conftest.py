"""One real PostgreSQL server for a module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from databases import PostgreSQL


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQL]:
    server = PostgreSQL()
    yield server
    server.stop()
