"""The rows of a chat request: `generating` before the first byte, completed with their trajectory before the last. Owns these two transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from online_sao.config import RewardSettings
from online_sao.errors import StorageError
from online_sao.service.chat_records import AdmittedRequest, Outcome
from online_sao.service.feedback import apply_scores
from online_sao.storage.repositories import interactions, trajectories
from online_sao.storage.session import Database
from online_sao.storage.tables import InteractionRow
from online_sao.types import InteractionStatus

_STATUS = {
    "stop": InteractionStatus.COMPLETED,
    "length": InteractionStatus.COMPLETED,
    "abandoned": InteractionStatus.ABANDONED,
    "error": InteractionStatus.FAILED,
}


class ChatLog:
    """``deadline_clock`` gives the Unix seconds from which the wait for a score is counted."""

    def __init__(self, database: Database, reward: RewardSettings, deadline_clock: Callable[[], float] = time.time) -> None:
        self._deadline_clock = deadline_clock
        self._database = database
        self._reward = reward
        self._kept: list[tuple[int, AdmittedRequest, Outcome]] = []
        """Completions that could not be written: their rows stay `generating` until they can."""

    async def open(self, request: AdmittedRequest) -> Sequence[int]:
        """One `generating` row for each choice, in one transaction. Returns their ids, in the order of the choices."""
        command = request.command
        sampling = request.sampling_note
        if command.tools:
            sampling["tools"] = list(command.tools)
        rows = [
            InteractionRow(
                completion_id=request.completion_id,
                choice=choice,
                request_id=command.request_id,
                episode_id=command.episode_id,
                user=command.user,
                model=command.model,
                stored=command.store,
                request_metadata=command.metadata,
                messages=list(command.messages),
                sampling=sampling,
                prompt_ids=list(request.prompt_ids),
                policy_version=request.policy_version,
                prompt_tokens=len(request.prompt_ids),
                created_at=request.created_at,
            )
            for choice in range(command.n)
        ]
        async with self._database.write() as session:
            await interactions.insert_generating(session, rows)
        return [row.id for row in rows]

    async def complete(self, row_id: int, request: AdmittedRequest, outcome: Outcome) -> str | None:
        """Complete the row, make its trajectory, and count a score that came while it was generating. Returns why it cannot train, if it cannot.

        Raises StorageError where nothing can be written; ``write_kept`` then tries again.
        """
        try:
            return await self._write(row_id, request, outcome)
        except StorageError:
            self._kept.append((row_id, request, outcome))
            raise

    async def write_kept(self) -> None:
        """Complete what could not be written when it ended. Raises StorageError while it still cannot be."""
        while self._kept:
            await self._write(*self._kept[0])
            self._kept.pop(0)

    async def _write(self, row_id: int, request: AdmittedRequest, outcome: Outcome) -> str | None:
        now = time.time()
        completion = outcome.completion
        async with self._database.write() as session:
            interaction = await interactions.complete(
                session,
                row_id,
                completion,
                status=_STATUS[completion.finish_reason],
                now=outcome.completed_at,
                first_token_at=outcome.first_token_at,
            )
            trajectory = await trajectories.create(
                session,
                interaction,
                now=now,
                deadline_at=self._deadline_clock() + self._reward.score_deadline_seconds,
                not_trainable_reason=_not_trainable_reason(request, outcome),
            )
            reason = trajectory.reason
            await apply_scores(session, trajectory, self._reward, now)
        return reason


def _not_trainable_reason(request: AdmittedRequest, outcome: Outcome) -> str | None:
    if not request.command.store:
        return "store_false"
    if outcome.completion.finish_reason == "abandoned":
        return "abandoned"
    if outcome.completion.finish_reason == "error":
        return "engine_error"
    if not outcome.completion.token_ids:
        return "no_action_tokens"
    return request.not_trainable_reason
