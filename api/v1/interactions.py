"""/v1/interactions: what was logged, and erasing it. Owns the shapes of a logged choice over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.bodies import check_text
from api.dependencies import BackendDependency
from api.v1.feedback import receipt_object
from api.v1.responses import Interaction, InteractionDeleted, InteractionPage
from online_sao.service.interactions import LoggedChoice
from online_sao.service.reasons import ReasonCode, advice_for
from online_sao.types import UNUSED_STATES, InteractionStatus, ReceiptStatus, TrajectoryState

router = APIRouter()


@router.get("/interactions", responses={200: {"model": InteractionPage}})
async def list_interactions(
    backend: BackendDependency,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
    after: Annotated[str | None, Query(max_length=64)] = None,
    user: Annotated[str | None, Query(max_length=256)] = None,
    model: Annotated[str | None, Query(max_length=128)] = None,
    status: InteractionStatus | None = None,
    policy_version: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    since: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    text: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    receipt: ReceiptStatus | None = None,
    trajectory: TrajectoryState | None = None,
    reason: ReasonCode | None = None,
    learned_into: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    without_effect: bool = False,
) -> JSONResponse:
    """Logged choices, newest first, without their tokens. ``after``: the ``next_cursor`` of the page before. ``receipt``: with a score whose receipt
    has that status. ``learned_into``: trained on by the update that made this version. ``without_effect``: with a score that has not moved the
    policy and never will."""
    for given in (after, user, model, text):
        check_text(given or "")
    page = await backend.interactions.page(
        limit=limit,
        after=after,
        user=user,
        model=model,
        status=status,
        policy_version=policy_version,
        since=since,
        text=text,
        receipt=receipt,
        trajectory=trajectory,
        reason=reason,
        learned_into=learned_into,
        without_effect=without_effect,
    )
    data = [_choice(choice) for choice in page.choices]
    return JSONResponse({"object": "list", "data": data, "has_more": page.next_cursor is not None, "next_cursor": page.next_cursor})


@router.get("/interactions/{completion_id}", responses={200: {"model": Interaction}})
async def get_interaction(backend: BackendDependency, completion_id: str) -> JSONResponse:
    """All choices of one completion, with tokens, behavior logprobs and version spans."""
    check_text(completion_id)
    choices = await backend.interactions.get(completion_id)
    return JSONResponse({"id": completion_id, "object": "interaction", "choices": [{**_choice(choice), **_tokens(choice)} for choice in choices]})


@router.delete("/interactions/{completion_id}", responses={200: {"model": InteractionDeleted}})
async def delete_interaction(backend: BackendDependency, completion_id: str) -> JSONResponse:
    """Erase texts and tokens of all choices; counts, timing and scores stay."""
    check_text(completion_id)
    erased = await backend.erasure.erase_completion(completion_id)
    return JSONResponse({"id": completion_id, "object": "interaction.deleted", "deleted": True, "choices": erased})


@router.delete("/interactions", responses={200: {"model": InteractionDeleted}})
async def delete_interactions(backend: BackendDependency, user: Annotated[str, Query(min_length=1, max_length=256)]) -> JSONResponse:
    """Erase everything logged under one ``user``. Where nothing is, ``deleted`` is false and ``message`` says so."""
    check_text(user)
    erased = await backend.erasure.erase_user(user)
    answer = {"user": user, "object": "interaction.deleted", "deleted": erased > 0, "choices": erased}
    if not erased:
        answer["message"] = (
            f"Nothing was erased: nothing with content is logged under the user {user!r}. Names must be equal to the letter; "
            "GET /v1/interactions shows them, and DELETE /v1/interactions/{completion_id} erases one completion."
        )
    return JSONResponse(answer)


def _choice(logged: LoggedChoice) -> dict[str, Any]:
    row, trajectory = logged.interaction, logged.trajectory
    return {
        "id": row.completion_id,
        "object": "interaction.choice",
        "choice": row.choice,
        "request_id": row.request_id,
        "model": row.model,
        "user": row.user,
        "episode_id": row.episode_id,
        "metadata": row.request_metadata,
        "status": row.status,
        "stored": row.stored,
        "messages": row.messages,
        "text": row.text,
        "finish_reason": row.finish_reason,
        "sampling": row.sampling,
        "policy_version": row.policy_version,
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "created": row.created_at,
        "first_token": row.first_token_at,
        "completed": row.completed_at,
        "trajectory": None
        if trajectory is None
        else {
            "state": trajectory.state,
            "reason": trajectory.reason,
            "advice": advice_for(trajectory.reason) if trajectory.state in UNUSED_STATES else None,
            "reward": trajectory.reward,
            "update": trajectory.update_number,
            "policy_lag": trajectory.policy_lag,
            "masked_fraction": trajectory.masked_fraction,
            "deadline": trajectory.deadline_at,
        },
        "scores": [receipt_object(receipt) for receipt in logged.receipts],
    }


def _tokens(logged: LoggedChoice) -> dict[str, Any]:
    row = logged.interaction
    return {
        "prompt_ids": row.prompt_ids,
        "token_ids": row.token_ids,
        "behavior_logprobs": row.behavior_logprobs,
        "version_spans": row.version_spans,
    }
