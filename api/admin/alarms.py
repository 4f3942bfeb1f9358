"""/admin/alarms: what is wrong now and what was, with what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.dependencies import BackendDependency

router = APIRouter()


@router.get("/alarms")
async def alarms(
    backend: BackendDependency,
    open_only: Annotated[bool, Query(alias="open")] = False,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> JSONResponse:
    """Newest first; one with ``cleared_at`` null is open. ``open=true``: only those. ``before``: only alarms with a smaller id."""
    found = await backend.alarms.list(limit=limit, before=before, open_only=open_only)
    return JSONResponse({"object": "list", "data": [{"object": "alarm", **asdict(alarm)} for alarm in found]})
