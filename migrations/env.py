"""Alembic's entry point. Runs on the connection the caller hands over, or, from the alembic command, on the database of the settings."""

import asyncio

from alembic import context
from sqlalchemy import Connection

from online_sao.storage.tables import Base


def migrate(connection: Connection) -> None:
    # SQLite cannot alter a column or constraint in place: batch mode rebuilds the table.
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=connection.dialect.name == "sqlite", compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


async def migrate_alone() -> None:
    from online_sao.config import Settings
    from online_sao.storage.session import create_engine, for_writing

    engine = create_engine(Settings().database_url, foreign_keys=False)
    try:
        async with for_writing(engine).begin() as connection:
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    asyncio.run(migrate_alone())
