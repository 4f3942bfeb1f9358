"""/metrics: Prometheus' text format. Owns what is on the page: the process's own counts, one reading of the database, and HTTP.

vLLM and the Prometheus client keep theirs (vllm:…, process_…, python_…) in the client's default registry, which is shown too.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_fastapi_instrumentator import metrics as http_metrics
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware

from api.dependencies import Backend, BackendDependency
from api.shared import Shared
from online_sao.errors import StorageError
from online_sao.runtime.status_metrics import Reading

router = APIRouter()

FRESH_SECONDS = 10.0
"""Scrapes within it share one reading, which counts the scores of a whole day."""
ANSWER_SECONDS = 5.0
"""What the database is given: Prometheus waits 10 s for all."""
_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


def count_requests(app: FastAPI) -> None:
    """Middleware that counts requests by route template, method and status; what no route matches is the handler "none". A streamed answer's
    duration lasts to its last chunk."""
    registry = app.state.http_registry = CollectorRegistry()
    by_route = (
        http_metrics.requests(registry=registry),
        http_metrics.latency(registry=registry, should_include_status=False, buckets=_SECONDS),
    )
    counting = [one for one in by_route if one is not None]
    app.add_middleware(PrometheusInstrumentatorMiddleware, should_group_status_codes=False, instrumentations=counting, registry=registry)


def share_reading(app: FastAPI, backend: Backend) -> None:
    """What every scrape of ``app`` shows of the database."""
    app.state.reading = Shared(partial(_read, backend), FRESH_SECONDS)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(backend: BackendDependency, request: Request) -> Response:
    """While the database does not answer, what needs none of it."""
    engine = backend.engine
    text = backend.meters.render(
        load=engine.load() if engine is not None else None,
        policy_version=engine.policy_version if engine is not None else None,
        reading=await request.app.state.reading.get(),
        spool=backend.spool,
        leading=backend.leading,
    )
    return Response(text + generate_latest(request.app.state.http_registry) + generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


async def _read(backend: Backend) -> Reading | None:
    """None: the database does not answer."""
    try:
        snapshot, totals, evaluation = await backend.status.measured(ANSWER_SECONDS)
    except StorageError:
        return None
    return Reading(snapshot, totals, backend.alarms.raised(snapshot.alarms), evaluation)
