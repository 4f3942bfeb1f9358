"""A service that answers commands from a table, without HTTP."""

from __future__ import annotations

from typing import Any

import httpx

STATUS = {
    "as_of": 1_700_000_000.0,
    "active_version": 3,
    "batch_size": 8,
    "score_range": [0.0, 1.0],
    "pipeline": {"ready": 1},
    "last_update": None,
    "alarms": [],
    "learner": {
        "phase": "waiting",
        "detail": None,
        "paused": False,
        "pause_reason": None,
        "heartbeat_age": 1.0,
        "presence": "alive",
        "silence": 1.0,
        "pid": 7,
        "lineage_epoch": 0,
        "head_version": 3,
        "head_update": 3,
    },
}
ALARM = {
    "id": 1,
    "kind": "score_drop",
    "severity": "critical",
    "message": "The mean score fell from 0.55 to 0.10.",
    "advice": "Compare the versions.",
    "policy_version": 3,
    "value": 0.45,
    "threshold": 0.1,
    "action": None,
    "raised_at": 1_699_999_880.0,
    "cleared_at": None,
}


class FakeService:
    """``answers``: "METHOD /path" → (status, JSON). ``asked``: every request as (method, url, parameters, authorization)."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {"GET /admin/status": (200, STATUS)}
        self.asked: list[tuple[str, str, dict[str, Any], str | None]] = []

    def request(self, method: str, url: str, *, headers: dict[str, str], params: dict[str, Any] | None = None, **_: Any) -> httpx.Response:
        self.asked.append((method, url, params or {}, headers.get("Authorization")))
        status, answer = self.answers[f"{method} {httpx.URL(url).path}"]
        return httpx.Response(status, json=answer)
