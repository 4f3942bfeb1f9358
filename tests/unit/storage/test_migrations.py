"""The migrations make exactly the schema the code uses, can go back, and are asked for where they are missing."""

import asyncio

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from online_sao.errors import ConfigurationError, StorageError
from online_sao.storage.migrations import Revision, downgrade, in_use, require_current, revision, upgrade
from online_sao.storage.repositories import learner, leases, policies
from online_sao.storage.session import Database, create_engine, sqlite_path
from online_sao.storage.tables import Base


@pytest.fixture
async def url(databases) -> str:
    return await asyncio.to_thread(databases.empty)


async def tables(url: str) -> set[str]:
    engine = create_engine(url)
    async with engine.connect() as connection:
        names = await connection.run_sync(lambda c: inspect(c).get_table_names())
    await engine.dispose()
    return set(names)


async def test_the_migrated_schema_is_the_one_in_tables_py(url) -> None:
    await upgrade(url)
    engine = create_engine(url)
    async with engine.connect() as connection:
        options = {"compare_type": True}
        differences = await connection.run_sync(lambda c: compare_metadata(MigrationContext.configure(c, opts=options), Base.metadata))
    await engine.dispose()
    assert differences == []


async def test_up_down_up(url) -> None:
    await upgrade(url)
    full = await tables(url)
    assert set(Base.metadata.tables) < full
    await downgrade(url, "base")
    assert await tables(url) == {"alembic_version"}
    await upgrade(url)
    await upgrade(url)
    assert await tables(url) == full


async def test_the_revision_is_told_and_only_a_known_one_is_gone_back_to(url) -> None:
    await upgrade(url)
    newest = await revision(url)
    assert newest.current == newest.needed
    with pytest.raises(ConfigurationError, match=r"no revision 4711.*0001.*base"):
        await downgrade(url, "4711")
    await downgrade(url, "0001")
    assert await revision(url) == Revision("0001", newest.needed)
    await upgrade(url)
    database = Database(url)
    assert await in_use(url, 1000.0) is None
    async with database.write() as session:
        await leases.acquire(session, "learner", leases.new_owner(), 1000.0)
    await database.dispose()
    assert await in_use(url, 1001.0) == "learner"
    assert await in_use(url, 1016.0) is None


async def test_a_fresh_database_stands_on_the_base_model(database) -> None:
    async with database.read() as session:
        active = await policies.active(session)
        state = await learner.get(session)
    assert (active.version, active.parent, active.update_number, active.path, active.served_digest) == (0, None, 0, None, [])
    assert active.activated_at == active.created_at > 1.6e9
    assert (state.head_version, state.head_update, state.lineage_epoch, state.paused, state.phase) == (0, 0, 0, False, "stopped")


async def test_two_processes_may_upgrade_at_once(url) -> None:
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, upgrade(url)) for _ in range(3)))
    database = Database(url)
    await require_current(database)
    await database.dispose()


@pytest.mark.only_on("sqlite")
async def test_a_file_is_made_with_its_folder_and_only_by_upgrade(tmp_path) -> None:
    path = tmp_path / "new" / "folder" / "a.db"
    url = f"sqlite+aiosqlite:///{path}"
    database = Database(url)
    with pytest.raises(ConfigurationError, match=r"There is no database at .*--data-dir.*`online-sao db upgrade`"):
        await require_current(database)
    assert not path.exists(), "asking must not create an empty database"
    await upgrade(url)
    await require_current(database)
    await database.dispose()


async def test_a_schema_that_is_not_ours_is_refused_with_advice(url) -> None:
    if (path := sqlite_path(url)) is not None:
        path.touch()
    database = Database(url)
    with pytest.raises(ConfigurationError, match=r"no tables yet.*Run `online-sao db upgrade`"):
        await require_current(database)
    await upgrade(url)
    await require_current(database)
    async with database.write() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="revision 9999, which this version of online-sao does not know"):
        await require_current(database)
    await database.dispose()


def test_an_in_memory_database_is_refused() -> None:
    for url in ("sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:"):
        with pytest.raises(ConfigurationError, match="in-memory"):
            Database(url)
    assert sqlite_path("postgresql+asyncpg://host/name") is None


@pytest.mark.parametrize("url", ["postgresql://host/name", "mysql+aiomysql://host/name", "sqlite:///a.db", "nonsense"])
def test_a_database_that_cannot_work_is_refused_with_what_can(url) -> None:
    with pytest.raises(ConfigurationError, match=r"postgresql\+asyncpg://.*sqlite\+aiosqlite:") as refused:
        Database(url)
    assert "host" not in str(refused.value), "a URL may hold a password"


@pytest.mark.only_on("postgresql")
async def test_a_server_that_is_not_there_is_told(tmp_path) -> None:
    for url in (f"postgresql+asyncpg://nobody@/nothing?host={tmp_path}", "postgresql+asyncpg://nobody@127.0.0.1:9/nothing"):
        with pytest.raises(ConfigurationError, match=r"cannot be opened: .*that the database server runs"):
            await upgrade(url)
        database = Database(url)
        with pytest.raises(StorageError, match="does not answer"):
            await database.ping()
        await database.dispose()
