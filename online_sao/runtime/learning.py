"""The composition root of the learner process, ``online-sao learn``. Owns what it is made of, its lease, its signals and its end.

Whoever starts it from another process names itself in ONLINE_SAO_SUPERVISOR_PID: the learner then ends when that process does, however that ends.
Knows nothing of HTTP or engines; it meets the serving process in the database and the policy store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

import psutil

from online_sao.background import Background
from online_sao.config import Settings
from online_sao.errors import ConfigurationError, LeaseHeldError, LeaseLostError, RanksLostError
from online_sao.learner.learner import Learner
from online_sao.runtime.learner_setup import open_learner
from online_sao.runtime.learner_status import LearnerStatus
from online_sao.runtime.learning_cycle import LearningCycle
from online_sao.runtime.ranks import PING_SECONDS, join, set_threads
from online_sao.storage.migrations import require_current
from online_sao.storage.repositories import leases
from online_sao.storage.session import Database

logger = logging.getLogger(__name__)

SUPERVISOR_VARIABLE = "ONLINE_SAO_SUPERVISOR_PID"
PARENT_POLL_SECONDS = 0.5
DISMISS_SECONDS = 1.0
"""What it may take to tell the other ranks that it is over, before this one ends all the same."""
LEASE_HELD_EXIT = 3
"""Exit code where another learner has this database: it may be gone the next time. What cannot work however often it is tried ends with 2."""


def run(settings: Settings) -> NoReturn:
    """Learn until SIGTERM, SIGINT or the end of the supervisor, then end the process: exit code 0 after a clean stop, 1 if the lease was lost or
    something failed, 3 if another learner holds it.

    Raises ConfigurationError where the settings or the data cannot work: the schema is not current, checkpoints are of another model or gone.
    """
    if settings.learning.niceness:
        os.nice(settings.learning.niceness)
    set_threads(settings)
    try:
        code = asyncio.run(_until_signal(settings))
    except LeaseHeldError as error:
        logger.error("%s", error.message)
        code = LEASE_HELD_EXIT
    except ConfigurationError:
        raise
    except Exception:
        logger.exception("the learner failed")
        code = 1
    # Not by returning: an update that has not noticed it was cancelled may still be running (its claim is released, nothing of it will be kept),
    # and taking the interpreter apart takes seconds after torch and transformers, longer than a server waits before it kills.
    if code != 0:
        # Ranks that wait in vain would end by themselves; one that hangs would not.
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _until_signal(settings: Settings) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return await live(settings, stopping)


async def live(settings: Settings, stopping: asyncio.Event) -> int:
    """Be the learner of this database until ``stopping`` is set. Returns the exit code of a process that does nothing else: 0 after that, 1 where
    the lease or another rank was lost. Raises LeaseHeldError, ConfigurationError, and whatever goes wrong. Work under way may go on afterwards."""
    compute = Background()
    database = Database(settings.database_url)
    try:
        await require_current(database)
        owner = leases.new_owner()
        async with database.write() as session:
            await leases.acquire(session, "learner", owner, time.time())
        status = LearnerStatus(database, owner)
        try:
            await _until_stopped(_learn(settings, database, compute, status, stopping), status.beat(), _watch_supervisor(stopping))
        except (LeaseLostError, RanksLostError) as error:
            logger.error("%s This one ends.", error.message)
            return 1
        except ConfigurationError as error:
            status.set("stopped", error.message)
            await status.end()
            raise
        await status.end()
        return 0
    finally:
        compute.end()
        await database.dispose()


async def _learn(settings: Settings, database: Database, compute: Background, status: LearnerStatus, stopping: asyncio.Event) -> None:
    opening = asyncio.create_task(compute.run(lambda: open_learner(settings, join(settings))))
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({opening, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not opening.done():
        opening.cancel()
        return
    learner = opening.result()
    logger.info("learner ready: %s/%s, batches of %d", learner.recipe.name, learner.recipe.preset, learner.recipe.batch_size)
    try:
        await _until_stopped(LearningCycle(settings, database, learner, compute, status, stopping).run(), _keep_in_touch(learner, compute))
    except RanksLostError:
        if not stopping.is_set():  # the others may have been told to end a moment before this one
            raise
    try:
        await asyncio.wait_for(compute.run(learner.ranks.dismiss), timeout=DISMISS_SECONDS)
    except (TimeoutError, RanksLostError):
        logger.info("the other ranks end by themselves: this one cannot tell them to")


async def _keep_in_touch(learner: Learner, compute: Background) -> None:
    """Between updates too, a rank that is gone is missed within seconds, and none of the others waits longer than its patience."""
    while True:
        await compute.run(learner.ranks.ping)
        await asyncio.sleep(PING_SECONDS)


async def _watch_supervisor(stopping: asyncio.Event) -> None:
    """Ends nothing by itself; sets ``stopping`` when the process that started this one is gone. Never, if none named itself."""
    supervisor = _supervisor()
    # The kernel tells nobody when a parent ends (portably): there is no event to wait for.
    while supervisor is not None and os.getppid() == supervisor:  # noqa: ASYNC110
        await asyncio.sleep(PARENT_POLL_SECONDS)
    if supervisor is not None:
        logger.info("the server that started this learner (pid %d) is gone", supervisor)
        stopping.set()
    await asyncio.Event().wait()


def _supervisor() -> int | None:
    value = os.environ.get(SUPERVISOR_VARIABLE)
    if value is not None and not value.isdigit():
        raise ConfigurationError(f"{SUPERVISOR_VARIABLE} is {value!r}; it must be the process id of the process that started the learner.")
    return int(value) if value is not None else None


async def _until_stopped(main: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` to its end with the others beside it, which never end by themselves. The first exception of any ends all, and is raised."""
    tasks = [asyncio.create_task(work) for work in (main, *beside)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
