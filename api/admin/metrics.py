"""/metrics: Prometheus' text format. What is counted lives in runtime.meters; the rest is read from the status snapshot."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.dependencies import BackendDependency
from online_sao.errors import StorageError

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(backend: BackendDependency) -> Response:
    engine = backend.engine
    try:
        snapshot = await backend.status.snapshot(scores=0, versions=1, swaps=0)
        newest = await backend.evaluations.list(limit=1)
    except StorageError:
        snapshot, newest = None, ()  # what the process knows by itself matters most while the database is away
    text = backend.meters.render(
        load=engine.load() if engine is not None else None,
        policy_version=engine.policy_version if engine is not None else None,
        trajectories=snapshot.pipeline if snapshot is not None else {},
        last_update=snapshot.last_update.metrics if snapshot is not None and snapshot.last_update is not None else {},
        alarms=backend.alarms.raised,
        evaluation=newest[0] if newest else None,
        spool=backend.spool,
        database_up=snapshot is not None,
        leading=backend.leading,
    )
    return Response(text, media_type=CONTENT_TYPE_LATEST)
