"""/v1/models: the policy by its name (latest version), and by ``name@vN`` for every version that can be had by its number."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.dependencies import BackendDependency
from api.v1.responses import Model, ModelList
from online_sao.errors import ModelNotFoundError

router = APIRouter()


@router.get("/models", responses={200: {"model": ModelList}})
async def list_models(backend: BackendDependency) -> JSONResponse:
    return JSONResponse({"object": "list", "data": await _models(backend)})


@router.get("/models/{model_id:path}", responses={200: {"model": Model}})
async def get_model(backend: BackendDependency, model_id: str) -> JSONResponse:
    for model in await _models(backend):
        if model["id"] == model_id:
            return JSONResponse(model)
    raise ModelNotFoundError(f"There is no model {model_id[:80]!r}.", param="model")


async def _models(backend: BackendDependency) -> list[dict[str, Any]]:
    active = await backend.active_version()
    name = backend.settings.policy.name
    versions = [active.version, *(await backend.pinned.available() if backend.pinned is not None else ())]
    common = {"object": "model", "created": int(active.activated_at or active.created_at), "owned_by": "online-sao"}
    return [{"id": name, **common, "policy_version": active.version}, *({"id": f"{name}@v{v}", **common, "policy_version": v} for v in versions)]
