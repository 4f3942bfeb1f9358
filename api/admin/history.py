"""/admin/updates and /admin/shifts: every update with its metrics, and how long the policy took to follow when what people want changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.dependencies import BackendDependency

router = APIRouter()


@router.get("/updates")
async def updates(
    backend: BackendDependency,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> JSONResponse:
    """Updates, newest first, with every metric and the ratio histogram. ``before``: only those with a smaller number."""
    found = await backend.history.updates(limit, before=before)
    return JSONResponse({"object": "list", "data": [{"object": "update", **asdict(update)} for update in found]})


@router.get("/shifts")
async def shifts(backend: BackendDependency) -> JSONResponse:
    """Falls of the score, newest first: when, how deep, and scores, answers and seconds to recovery. Null: not recovered."""
    return JSONResponse({"object": "list", "data": [{"object": "shift", **asdict(shift)} for shift in await backend.history.shifts()]})
