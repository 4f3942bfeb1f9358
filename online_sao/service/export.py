"""Logged interactions as JSON lines: tokens, logprobs, version spans, scores and receipts. Owns the format; knows nothing of files.

The first line is a header (``object`` "online_sao.export", ``format`` FORMAT). Every other is one interaction. Those kept without content
(``store: false``, erased) carry ids, counts and timing only. Fields are only ever added; FORMAT rises where an old reader would go wrong.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from online_sao.config import Settings
from online_sao.service.receipts import receipts_of
from online_sao.storage.repositories import exports
from online_sao.storage.repositories.exports import Filters
from online_sao.storage.session import Database
from online_sao.storage.tables import FeedbackRow, InteractionRow

FORMAT = 1
HEADER = "online_sao.export"
PAGE = 100
"""Interactions read in one transaction: a running service's writers never wait for an export."""

_FIELDS = (
    "completion_id",
    "choice",
    "episode_id",
    "user",
    "model",
    "status",
    "finish_reason",
    "stored",
    "policy_version",
    "prompt_tokens",
    "completion_tokens",
    "created_at",
    "first_token_at",
    "completed_at",
    "messages",
    "sampling",
    "prompt_ids",
    "token_ids",
    "behavior_logprobs",
    "version_spans",
    "text",
)


class ExportService:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def lines(self, filters: Filters) -> AsyncIterator[dict[str, Any]]:
        """The header, then the interactions, oldest first. Each page is one consistent read; what is completed meanwhile comes at the end or not."""
        reward = self._settings.reward
        yield {
            "object": HEADER,
            "format": FORMAT,
            "created_at": time.time(),
            "model": self._settings.policy.model,
            "reward": {"score_min": reward.score_min, "score_max": reward.score_max, "metric_weights": reward.metric_weights},
            "filters": asdict(filters),
        }
        after_id = 0
        while True:
            async with self._database.read() as session:
                rows = await exports.page(session, filters, after_id=after_id, limit=PAGE)
                receipts = await receipts_of(session, [feedback.id for _, scores in rows for feedback in scores])
            for row, scores in rows:
                yield _line(row, scores, receipts)
            if len(rows) < PAGE:
                return
            after_id = rows[-1][0].id


def _line(row: InteractionRow, scores: Sequence[FeedbackRow], receipts: dict[str, Any]) -> dict[str, Any]:
    return {
        "object": "interaction",
        **{name: getattr(row, name) for name in _FIELDS},
        "scores": [
            {
                **asdict(receipts[feedback.id]),
                "comment": feedback.comment,
                # Whether it is the current score of its metric: what a reward is made of.
                "counts": feedback.superseded_by is None and feedback.refused_reason is None,
            }
            for feedback in scores
        ],
    }
