"""/metrics: Prometheus' text format. What is counted lives in runtime.meters; the rest is read from the status snapshot."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.dependencies import BackendDependency

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(backend: BackendDependency) -> Response:
    snapshot = await backend.status.snapshot(scores=0, versions=1, swaps=0)
    newest = await backend.evaluations.list(limit=1)
    engine = backend.engine
    text = backend.meters.render(
        load=engine.load() if engine is not None else None,
        policy_version=engine.policy_version if engine is not None else None,
        trajectories=snapshot.pipeline,
        last_update=snapshot.last_update.metrics if snapshot.last_update is not None else {},
        alarms=backend.alarms.raised,
        evaluation=newest[0] if newest else None,
    )
    return Response(text, media_type=CONTENT_TYPE_LATEST)
