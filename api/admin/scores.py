"""/admin/scores: what became of scores, counted."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.dependencies import BackendDependency

router = APIRouter()


@router.get("/scores/without-effect")
async def scores_without_effect(backend: BackendDependency, hours: Annotated[float, Query(gt=0, le=24 * 3650)] = 24.0) -> JSONResponse:
    """Scores of the last ``hours`` that have not moved the policy and never will: reason by reason, the most frequent first, with what to do.
    ``reason`` null: each has words of its own, such as a gate's."""
    since = time.time() - hours * 3600
    found = await backend.interactions.scores_without_effect(since)
    data = [
        {
            "object": "scores.without_effect",
            "reason": None if one.kind is None else one.kind.code.value,
            "words": None if one.kind is None else one.kind.words,
            "advice": None if one.kind is None else one.kind.advice,
            "trajectory": None if one.state is None else one.state.value,
            "scores": one.count,
        }
        for one in found
    ]
    return JSONResponse({"object": "list", "data": data, "since": since, "scores": sum(one.count for one in found)})
