"""/admin/evaluations: what each version says to fixed prompts, and how well it still predicts a fixed text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.dependencies import BackendDependency

router = APIRouter()


@router.get("/evaluations")
async def evaluations(
    backend: BackendDependency,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> JSONResponse:
    """Newest version first. ``before``: only versions older than that. Versions that were replaced before their turn have none."""
    found = await backend.evaluations.list(limit=limit, before=before)
    return JSONResponse({"object": "list", "data": [{"object": "evaluation", **asdict(item)} for item in found]})
