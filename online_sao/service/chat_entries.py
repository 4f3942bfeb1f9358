"""The two entries that a chat leaves in the log, begun and ended: as rows of the database, and as records of the spool while that is away.

Owns what each holds and how either is written, once or, after a crash, a second time. Knows nothing of when.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from typing import Any

from online_sao.config import RewardSettings
from online_sao.service.chat_records import AdmittedRequest, Outcome
from online_sao.service.feedback import apply_scores
from online_sao.storage.repositories import interactions, trajectories
from online_sao.storage.session import Session
from online_sao.storage.spool import Record
from online_sao.storage.tables import InteractionRow
from online_sao.types import Completion, InteractionStatus, VersionSpan

logger = logging.getLogger(__name__)

_STATUS = {
    "stop": InteractionStatus.COMPLETED,
    "length": InteractionStatus.COMPLETED,
    "abandoned": InteractionStatus.ABANDONED,
    "error": InteractionStatus.FAILED,
}


@dataclass(frozen=True, slots=True)
class Begun:
    """A request before its first byte: what its choices' rows have in common, column by column."""

    completion_id: str
    choices: int
    columns: dict[str, Any]

    @classmethod
    def of(cls, request: AdmittedRequest, served_by: str | None = None) -> Begun:
        """``served_by``: the process, as it names itself in leases."""
        command = request.command
        columns: dict[str, Any] = {
            "request_id": command.request_id,
            "model": command.model,
            "stored": command.store,
            "policy_version": request.policy_version,
            "prompt_tokens": len(request.prompt_ids),
            "created_at": request.created_at,
            "served_by": served_by,
            "request_metadata": {},
            "sampling": {},
        }
        if command.store:
            sampling = request.sampling_note
            if command.tools:
                sampling["tools"] = list(command.tools)
            columns |= {
                "episode_id": command.episode_id,
                "user": command.user,
                "request_metadata": command.metadata,
                "messages": list(command.messages),
                "sampling": sampling,
                "prompt_ids": list(request.prompt_ids),
            }
        return cls(request.completion_id, command.n, columns)

    async def write(self, session: Session) -> None:
        """One `generating` row for each choice."""
        rows = [InteractionRow(completion_id=self.completion_id, choice=choice, **self.columns) for choice in range(self.choices)]
        await interactions.insert_generating(session, rows)

    async def replay(self, session: Session) -> None:
        """``write``, unless that was done before: a commit whose answer was lost, or a spool that is read a second time."""
        if not await interactions.by_completion(session, self.completion_id):
            await self.write(session)

    def record(self) -> Record:
        return {"begun": self.completion_id, "choices": self.choices, "columns": self.columns}


@dataclass(frozen=True, slots=True)
class Ended:
    """One choice before its last byte. ``not_trainable_reason``: None where it may train; ``deadline_at``: until when it waits for a score. Where
    ``stored`` is False the completion holds counts and versions only."""

    completion_id: str
    choice: int
    stored: bool
    completion: Completion
    first_token_at: float | None
    completed_at: float
    deadline_at: float
    not_trainable_reason: str | None

    @classmethod
    def of(cls, request: AdmittedRequest, choice: int, outcome: Outcome, deadline_at: float) -> Ended:
        return cls(
            request.completion_id,
            choice,
            request.command.store,
            outcome.completion,
            outcome.first_token_at,
            outcome.completed_at,
            deadline_at,
            _not_trainable_reason(request, outcome),
        )

    async def write(self, session: Session, reward: RewardSettings) -> str | None:
        """Complete the row, make its trajectory, and count a score that came while it was generating. Returns why it cannot train, if it cannot.

        Raises LifecycleError where the row is complete already, LookupError where there is none.
        """
        now = time.time()
        row = await interactions.get(session, self.completion_id, self.choice, lock=True)
        if row is None:
            raise LookupError(f"{self.completion_id} choice {self.choice} was never begun")
        interrupted = row.status == InteractionStatus.INTERRUPTED
        status = _STATUS[self.completion.finish_reason]
        await interactions.complete(session, row, self.completion, status=status, now=self.completed_at, first_token_at=self.first_token_at)
        if interrupted and (trajectory := await trajectories.by_interaction(session, row.id)) is not None:
            return trajectory.reason  # of what was taken for interrupted: it stays untrained
        trajectory = await trajectories.create(session, row, now=now, deadline_at=self.deadline_at, not_trainable_reason=self.not_trainable_reason)
        reason = trajectory.reason
        await apply_scores(session, trajectory, reward, now)
        return reason

    async def replay(self, session: Session, reward: RewardSettings) -> None:
        """``write``, unless that was done before. Raises LookupError where the row was never begun."""
        row = await interactions.get(session, self.completion_id, self.choice)
        if row is None or row.status in (InteractionStatus.GENERATING, InteractionStatus.INTERRUPTED):
            await self.write(session, reward)

    def record(self) -> Record:
        fields = asdict(self)
        completion = fields.pop("completion")
        completion["version_spans"] = [[span.start, span.end, span.policy_version] for span in self.completion.version_spans]
        if not self.stored:
            completion |= {"token_ids": len(self.completion.token_ids), "behavior_logprobs": [], "text": ""}
        return {"ended": fields, "completion": completion}


def from_record(record: Record) -> Begun | Ended:
    """Raises KeyError, TypeError or ValueError for a record that is neither."""
    if "begun" in record:
        return Begun(record["begun"], record["choices"], record["columns"])
    completion = record["completion"]
    tokens = completion["token_ids"]
    return Ended(
        **record["ended"],
        completion=Completion(
            # Of what is not stored only the count is known, and only the count is used.
            token_ids=tuple(tokens) if isinstance(tokens, list) else (0,) * tokens,
            behavior_logprobs=tuple(completion["behavior_logprobs"]),
            version_spans=tuple(VersionSpan(*span) for span in completion["version_spans"]),
            text=completion["text"],
            finish_reason=completion["finish_reason"],
        ),
    )


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
