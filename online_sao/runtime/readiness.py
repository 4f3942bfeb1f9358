"""Whether chats are answered now, and what is missing. Owns that judgement; knows nothing of how it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from online_sao.service.chat_log import ChatLog, SpoolState
from online_sao.storage.session import Database

PING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """``missing``: part → why. ``answering``: whether chats are answered all the same: without a database for as long as the spool has room."""

    missing: Mapping[str, str]
    answering: bool
    spool: SpoolState


async def judge(engine_problem: str | None, database: Database, log: ChatLog, tokens: int) -> Readiness:
    """``engine_problem`` None: it serves. ``tokens``: the default length of an answer."""
    missing = {} if engine_problem is None else {"engine": engine_problem}
    try:
        await asyncio.wait_for(database.ping(), timeout=PING_SECONDS)
    except Exception as error:
        missing["database"] = f"it does not answer: {error or type(error).__name__}"
    spool = log.state(tokens)
    return Readiness(missing, engine_problem is None and ("database" not in missing or spool.has_room), spool)
