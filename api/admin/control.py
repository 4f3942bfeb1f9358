"""/admin: where everything stands, the versions of the policy and going back to one, and pausing the learner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from api.bodies import json_body, openapi_body
from api.dashboard.view import batch_size
from api.dependencies import BackendDependency
from online_sao.config import EvaluationSettings
from online_sao.service.control import PolicyDetail
from online_sao.service.policy_diff import PolicyDiff, evaluation_problem
from online_sao.types import VersionState

router = APIRouter()


class PauseRequest(BaseModel):
    """POST /admin/learner/pause. An empty body will do."""

    model_config = ConfigDict(strict=True, extra="ignore")

    reason: Annotated[str, Field(max_length=500)] | None = None


class ActivateRequest(BaseModel):
    """POST /admin/policies/{version}/activate. An empty body will do: the learner stays paused then."""

    model_config = ConfigDict(strict=True, extra="ignore")

    resume: bool | None = None
    reason: Annotated[str, Field(max_length=500)] | None = None


VersionNumber = Annotated[int, PathParameter(ge=0, lt=2**31)]
VersionQuery = Annotated[int, Query(ge=0, lt=2**31)]


@router.get("/status")
async def status(backend: BackendDependency) -> JSONResponse:
    """One consistent look at the database, and at the engine beside it."""
    snapshot = asdict(await backend.status.snapshot())
    settings = backend.settings
    measures = {"batch_size": batch_size(settings), "score_range": [settings.reward.score_min, settings.reward.score_max]}
    return JSONResponse({"object": "status", "ready": not (await backend.readiness()).missing, "engine": _engine(backend), **measures, **snapshot})


@router.get("/policies")
async def policies(
    backend: BackendDependency,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> JSONResponse:
    """Policy versions, newest first. ``before``: only those older than that version."""
    versions = await backend.control.versions(limit=limit, before=before)
    return JSONResponse({"object": "list", "data": [{"object": "policy", **asdict(version)} for version in versions]})


@router.get("/policies/diff")
async def diff(backend: BackendDependency, first: Annotated[int, Query(alias="from", ge=0, lt=2**31)], to: VersionQuery) -> JSONResponse:
    """Two versions side by side: scores with intervals, the updates between them, samples, distance of the weights."""
    return JSONResponse(_diff(await backend.control.diff(first, to), backend.settings.evaluation))


@router.get("/policies/{version}")
async def policy(backend: BackendDependency, version: VersionNumber) -> JSONResponse:
    return JSONResponse(_policy(await backend.control.policy(version)))


@router.post("/policies/{version}/activate", openapi_extra=openapi_body(ActivateRequest))
async def activate(
    backend: BackendDependency, version: VersionNumber, body: Annotated[ActivateRequest, Depends(json_body(ActivateRequest, allow_empty=True))]
) -> JSONResponse:
    """Go back (or forward again) to a version that has served. 202: recorded, and the engine loads it next; GET the version to see it ACTIVE."""
    detail = await backend.control.rollback(version, resume=bool(body.resume), reason=body.reason)
    return JSONResponse(_policy(detail), status_code=200 if detail.version.state == VersionState.ACTIVE else 202)


@router.get("/rollbacks")
async def rollbacks(backend: BackendDependency, limit: Annotated[int, Query(ge=1, le=200)] = 20) -> JSONResponse:
    """Newest first."""
    done = await backend.control.rollbacks(limit)
    return JSONResponse({"object": "list", "data": [{"object": "rollback", **asdict(rollback)} for rollback in done]})


@router.get("/learner")
async def learner(backend: BackendDependency) -> JSONResponse:
    """What the learner does, and when it last gave a sign of life."""
    return JSONResponse({"object": "learner", **asdict(await backend.control.learner())})


@router.post("/learner/pause", openapi_extra=openapi_body(PauseRequest, required=False))
async def pause(backend: BackendDependency, body: Annotated[PauseRequest, Depends(json_body(PauseRequest, allow_empty=True))]) -> JSONResponse:
    """No batch is claimed from now on. Serving and scoring go on."""
    return JSONResponse({"object": "learner", **asdict(await backend.control.pause_learner(body.reason))})


@router.post("/learner/resume")
async def resume(backend: BackendDependency) -> JSONResponse:
    return JSONResponse({"object": "learner", **asdict(await backend.control.resume_learner())})


def _policy(detail: PolicyDetail) -> dict[str, Any]:
    rest = {key: value for key, value in asdict(detail).items() if key != "version"}
    return {"object": "policy", **asdict(detail.version), **rest}


def _diff(found: PolicyDiff, settings: EvaluationSettings) -> dict[str, Any]:
    """``samples`` pairs what both said to the same fixed prompt; ``evaluation_problems`` says why a version has no evaluation."""
    missing = [version for version in (found.first, found.second) if version.version not in found.evaluations]
    said = {version: {sample.prompt: sample.text for sample in found.evaluations[version].samples} for version in found.evaluations}
    first, second = said.get(found.first.version, {}), said.get(found.second.version, {})
    return {
        "object": "policy.diff",
        "from": {"object": "policy", **asdict(found.first)},
        "to": {"object": "policy", **asdict(found.second)},
        "lineage": asdict(found.lineage),
        "updates": [{"side": side, **asdict(u)} for side, made in (("from", found.updates_from), ("to", found.updates_to)) for u in made],
        "evaluations": {str(version): asdict(evaluation) for version, evaluation in found.evaluations.items()},
        "evaluation_problems": {str(version.version): evaluation_problem(version, settings) for version in missing},
        "samples": [{"prompt": prompt, "from": first[prompt], "to": second[prompt]} for prompt in first if prompt in second],
        "weights": asdict(found.weights) if found.weights is not None else None,
        "weights_problem": found.weights_problem,
    }


def _engine(backend: BackendDependency) -> dict[str, Any] | None:
    engine = backend.engine
    if engine is None:
        return None
    replicas = [asdict(replica) for replica in engine.replicas]
    return {"policy_version": engine.policy_version, "healthy": engine.healthy, **asdict(engine.load()), "replicas": replicas}
