"""/v1/feedback: a score in, a receipt out. Owns the HTTP of it; which score counts is service.feedback's."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from api.bodies import json_body, openapi_body
from api.dependencies import BackendDependency
from api.v1.responses import FeedbackReceipt
from api.v1.schemas import FeedbackRequest
from online_sao.service.receipts import Receipt
from online_sao.service.submissions import FeedbackSubmission

router = APIRouter()


def receipt_object(receipt: Receipt) -> dict[str, Any]:
    return {**{field.name: getattr(receipt, field.name) for field in fields(receipt)}, "status": receipt.status.value}


@router.post(
    "/feedback",
    status_code=201,
    openapi_extra=openapi_body(FeedbackRequest),
    responses={
        201: {"model": FeedbackReceipt, "description": "The receipt of a new score, which is on disk."},
        200: {"model": FeedbackReceipt, "description": "An equal score stands already: its receipt."},
    },
)
async def create_feedback(backend: BackendDependency, body: Annotated[FeedbackRequest, Depends(json_body(FeedbackRequest))]) -> JSONResponse:
    """201 with the receipt of a new score; 200 where an equal one stands already."""
    submission = FeedbackSubmission(
        completion_id=body.completion_id,
        value=body.value,
        choice=body.choice if body.choice is not None else 0,
        metric=body.metric if body.metric is not None else "score",
        comment=body.comment,
        idempotency_key=body.idempotency_key,
        episode_id=body.episode_id,
    )
    receipt, created = await backend.feedback.submit(submission)
    return JSONResponse(receipt_object(receipt), status_code=201 if created else 200)


@router.get("/feedback/{feedback_id}", responses={200: {"model": FeedbackReceipt}})
async def get_feedback(backend: BackendDependency, feedback_id: str) -> JSONResponse:
    """The receipt as it stands."""
    return JSONResponse(receipt_object(await backend.feedback.get(feedback_id)))
