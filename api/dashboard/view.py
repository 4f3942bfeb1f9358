"""What the page shows at one moment, and what it needs of the server to know it. Owns the reading; how it is drawn is in panels.py and chart.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from online_sao.config import Settings
from online_sao.inference.engine import EngineLoad, InferenceEngine
from online_sao.service.chat import ChatService
from online_sao.service.feedback import FeedbackService
from online_sao.service.status import StatusService, StatusSnapshot

SCORES_SHOWN = 400


class DashboardBackend(Protocol):
    """The running server, as far as the page knows it. ``chat`` raises NotReadyError, and ``engine`` is None, until the engine serves."""

    @property
    def settings(self) -> Settings: ...
    @property
    def chat(self) -> ChatService: ...
    @property
    def feedback(self) -> FeedbackService: ...
    @property
    def status(self) -> StatusService: ...
    @property
    def engine(self) -> InferenceEngine | None: ...


@dataclass(frozen=True, slots=True)
class View:
    """The database's state, and the engine's: version being sampled from (None: not serving yet) and how busy it is."""

    snapshot: StatusSnapshot
    serving_version: int | None
    load: EngineLoad

    def age(self, at: float) -> float:
        """Seconds from ``at`` (Unix) to the moment the numbers were read."""
        return self.snapshot.as_of - at


async def read(backend: DashboardBackend) -> View:
    """Everything the page shows, read together."""
    engine = backend.engine
    return View(
        snapshot=await backend.status.snapshot(scores=SCORES_SHOWN),
        serving_version=None if engine is None else engine.policy_version,
        load=EngineLoad(0, 0) if engine is None else engine.load(),
    )
