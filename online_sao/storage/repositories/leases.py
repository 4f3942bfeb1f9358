"""Who may act as the serving instance and as the learner. Owns the rule that there is one of each per database.

A lease is held by ``host:pid:uuid`` until it expires; holders renew it well before.
The lease of a process that died on this host can be taken at once; in a container, that is in the same one.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import Literal

import psutil
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.errors import LeaseHeldError, LeaseLostError
from online_sao.storage.tables import LeaseRow

LeaseName = Literal["serving", "learner"]
LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0


def new_owner() -> str:
    """A name for this process as a lease holder; call it once per holder."""
    return f"{this_host()}:{os.getpid()}:{uuid.uuid4().hex}"


def this_host() -> str:
    """Where this process's id means something: containers may share a host name, and number their processes each for itself."""
    name = socket.gethostname()[:60]
    try:
        return f"{name}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return name


async def database_clock(session: AsyncSession) -> float:
    """Unix seconds by the clock that all processes of one database share: PostgreSQL's, or with SQLite this machine's."""
    if session.get_bind().dialect.name != "postgresql":
        return time.time()
    return float(await session.scalar(select(func.extract("epoch", func.clock_timestamp()))) or 0.0)


async def acquire(session: AsyncSession, name: LeaseName, owner: str, now: float, seconds: float = LEASE_SECONDS) -> None:
    """Take the lease, for ``seconds``. Raises LeaseHeldError, naming the holder, while a live process holds it."""
    row = (await session.scalars(select(LeaseRow).where(LeaseRow.name == name).with_for_update())).one_or_none()
    if row is None:
        try:
            async with session.begin_nested():
                session.add(LeaseRow(name=name, owner=owner, expires_at=now + seconds))
        except IntegrityError as error:
            raise LeaseHeldError(f"Another process has just become the {name} process of this database.") from error
        return
    if row.owner != owner and row.expires_at > now and not is_dead(row.owner):
        host, pid, _ = row.owner.rsplit(":", 2)
        raise LeaseHeldError(
            f"Process {pid} on {host.partition('/')[0]} is already the {name} process of this database (its lease ends in "
            f"{row.expires_at - now:.0f} s). Stop it, or give this one a data_dir or database_url of its own."
        )
    row.owner = owner
    row.expires_at = now + seconds
    await session.flush()


async def renew(session: AsyncSession, name: LeaseName, owner: str, now: float, seconds: float = LEASE_SECONDS) -> None:
    """Raises LeaseLostError if another process has taken it: stop acting then."""
    query = update(LeaseRow).where(LeaseRow.name == name, LeaseRow.owner == owner).values(expires_at=now + seconds)
    if not (await session.scalars(query.returning(LeaseRow.name))).all():
        raise LeaseLostError(f"The {name} lease of {owner} was taken by another process.")


async def require(session: AsyncSession, name: LeaseName, owner: str) -> None:
    """Nobody takes the lease before this transaction ends. Raises LeaseLostError if somebody has."""
    row = (await session.scalars(select(LeaseRow).where(LeaseRow.name == name, LeaseRow.owner == owner).with_for_update())).one_or_none()
    if row is None:
        raise LeaseLostError(f"The {name} lease of {owner} was taken by another process.")


async def release(session: AsyncSession, name: LeaseName, owner: str) -> None:
    """Give it up. Nothing happens if it was not held any more."""
    await session.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.owner == owner))


async def is_held(session: AsyncSession, name: LeaseName, now: float) -> bool:
    """Whether a process that is not known to be dead holds the lease now."""
    row = (await session.scalars(select(LeaseRow).where(LeaseRow.name == name))).one_or_none()
    return row is not None and row.expires_at > now and not is_dead(row.owner)


def is_dead(owner: str) -> bool:
    """Whether the process behind a lease is gone. True only where we can know: the process was on this host, and is gone or a zombie."""
    host, pid, _ = owner.rsplit(":", 2)
    if host != this_host():
        return False
    try:
        return bool(psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
