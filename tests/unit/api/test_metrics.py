"""What /metrics shows of the database: one reading for many scrapes, and that there is none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from api.admin import metrics
from online_sao.config import Settings
from online_sao.errors import StorageError
from online_sao.runtime.meters import Meters
from online_sao.service.alarms import AlarmService
from online_sao.service.chat_log import SpoolState
from online_sao.service.status import StatusService
from online_sao.storage.repositories import alarms
from online_sao.storage.tables import AlarmRow


class Readings:
    """The database, counting how often it is read; ``away``: it does not answer."""

    def __init__(self, database) -> None:
        self._database = database
        self.promptly = database.promptly
        self.count = 0
        self.away = False

    @asynccontextmanager
    async def read(self) -> AsyncIterator[object]:
        self.count += 1
        if self.away:
            raise StorageError("The database does not answer.")
        async with self._database.read() as session:
            yield session


@pytest.fixture
def backend(database, tmp_path, monkeypatch) -> SimpleNamespace:
    monkeypatch.chdir(tmp_path)
    settings = Settings(storage={"data_dir": tmp_path})
    readings = Readings(database)

    async def no_rollback(*_: object, **__: object) -> None: ...

    return SimpleNamespace(
        settings=settings,
        readings=readings,
        status=StatusService(readings),
        alarms=AlarmService(readings, settings, no_rollback),
        meters=Meters(),
        engine=None,
        spool=SpoolState(0, 0, 0, has_room=False),
        leading=False,
    )


@pytest.fixture
async def http(backend) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(metrics.router)
    app.state.backend = backend
    metrics.count_requests(app)
    metrics.share_reading(app, backend)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        yield http


async def test_scrapes_share_one_reading(backend, http) -> None:
    texts = [(await http.get("/metrics")).text for _ in range(3)]
    assert all("online_sao_database_up 1.0" in text and 'online_sao_receipts{status="live"} 0.0' in text for text in texts)
    assert backend.readings.count == 1


async def test_an_alarm_that_another_process_raised_is_told(backend, http, database) -> None:
    """After a takeover or a start, some kinds cannot be judged for a while."""
    async with database.write() as session:
        await alarms.raise_alarm(session, AlarmRow(kind="score_drop", severity="critical", message="m", advice="a", raised_at=1.0))
    text = (await http.get("/metrics")).text
    assert 'online_sao_alarm{kind="score_drop"} 1.0' in text
    assert 'online_sao_alarm{kind="perplexity"} 0.0' in text


async def test_without_a_database_it_says_so_and_what_it_knows_itself(backend, http) -> None:
    backend.readings.away = True
    text = (await http.get("/metrics")).text
    assert "online_sao_database_up 0.0" in text
    assert "online_sao_serve_leading 0.0" in text
    assert "online_sao_receipts" not in text
