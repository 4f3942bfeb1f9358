"""/admin: where everything stands, the versions of the policy, and pausing the learner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from api.bodies import json_body, openapi_body
from api.dependencies import BackendDependency

router = APIRouter()


class PauseRequest(BaseModel):
    """POST /admin/learner/pause. An empty body will do."""

    model_config = ConfigDict(strict=True, extra="ignore")

    reason: Annotated[str, Field(max_length=500)] | None = None


@router.get("/status")
async def status(backend: BackendDependency) -> JSONResponse:
    """One consistent look at the database, and at the engine beside it."""
    snapshot = asdict(await backend.status.snapshot())
    return JSONResponse({"object": "status", "ready": not await backend.missing(), "engine": _engine(backend), **snapshot})


@router.get("/policies")
async def policies(
    backend: BackendDependency,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> JSONResponse:
    """Policy versions, newest first. ``before``: only those older than that version."""
    versions = await backend.control.versions(limit=limit, before=before)
    return JSONResponse({"object": "list", "data": [{"object": "policy", **asdict(version)} for version in versions]})


@router.post("/learner/pause", openapi_extra=openapi_body(PauseRequest))
async def pause(backend: BackendDependency, body: Annotated[PauseRequest, Depends(json_body(PauseRequest, allow_empty=True))]) -> JSONResponse:
    """No batch is claimed from now on. Serving and scoring go on."""
    return JSONResponse({"object": "learner", **asdict(await backend.control.pause_learner(body.reason))})


@router.post("/learner/resume")
async def resume(backend: BackendDependency) -> JSONResponse:
    return JSONResponse({"object": "learner", **asdict(await backend.control.resume_learner())})


def _engine(backend: BackendDependency) -> dict[str, Any] | None:
    engine = backend.engine
    if engine is None:
        return None
    return {"policy_version": engine.policy_version, "healthy": engine.healthy, **asdict(engine.load())}
