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
@router.get("/readyz", responses={503: {"description": "Not ready; `missing` says what is not there, and why."}})
async def readyz(backend: BackendDependency) -> JSONResponse:
    """503, and what is missing, until the engine serves and the database answers."""
    missing = await backend.missing()
    if missing:
        return JSONResponse({"status": "not_ready", "missing": missing}, status_code=503, headers={"Retry-After": "2"})
    return JSONResponse({"status": "ready", "missing": {}})
