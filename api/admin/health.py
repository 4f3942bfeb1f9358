"""/healthz and /readyz: is the process alive, and can it answer chats. Open to anyone: they say nothing of what is served to whom."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.dependencies import BackendDependency

router = APIRouter()


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz")
async def healthz() -> JSONResponse:
    return JSONResponse({"status": "alive"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses={503: {"description": "Chats are not answered; `missing` says what is not there, and why."}})
async def readyz(backend: BackendDependency) -> JSONResponse:
    """200 while chats are answered: `ready`, or `degraded` while that goes on without the database (scores are refused). Else 503, `not_ready`."""
    found = await backend.readiness()
    status = "not_ready" if not found.answering else "degraded" if found.missing else "ready"
    spool = {"records": found.spool.records, "bytes": found.spool.bytes, "limit_bytes": found.spool.limit_bytes}
    body = {"status": status, "missing": found.missing, "spool": spool}
    if found.answering:
        return JSONResponse(body)
    return JSONResponse(body, status_code=503, headers={"Retry-After": "2"})
