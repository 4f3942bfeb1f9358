"""/v1/models: the policy by its name (latest version), and by ``name@vN`` for the version being served."""

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
    created = int(active.activated_at or active.created_at)
    name = backend.settings.policy.name
    common = {"object": "model", "created": created, "owned_by": "online-sao", "policy_version": active.version}
    return [{"id": name, **common}, {"id": f"{name}@v{active.version}", **common}]
