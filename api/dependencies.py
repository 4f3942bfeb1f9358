"""What routes may ask of the server. Owns the Backend protocol; the app puts the real one (runtime.serving) on its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol, cast

from fastapi import Depends, Request

from online_sao.config import Settings
from online_sao.inference.engine import InferenceEngine
from online_sao.runtime.meters import Meters
from online_sao.runtime.readiness import Readiness
from online_sao.service.alarms import AlarmService
from online_sao.service.chat import ChatService
from online_sao.service.chat_log import SpoolState
from online_sao.service.control import ControlService
from online_sao.service.erasure import ErasureService
from online_sao.service.evaluations import EvaluationService
from online_sao.service.feedback import FeedbackService
from online_sao.service.history import HistoryService
from online_sao.service.interactions import InteractionService
from online_sao.service.pinned import PinnedVersions
from online_sao.service.status import StatusService
from online_sao.storage.tables import PolicyVersionRow


class Backend(Protocol):
    """Everything behind the routes. ``chat`` raises NotReadyError until the engine serves."""

    @property
    def settings(self) -> Settings: ...
    @property
    def chat(self) -> ChatService: ...
    @property
    def feedback(self) -> FeedbackService: ...
    @property
    def interactions(self) -> InteractionService: ...
    @property
    def erasure(self) -> ErasureService: ...
    @property
    def status(self) -> StatusService: ...
    @property
    def history(self) -> HistoryService: ...
    @property
    def control(self) -> ControlService: ...
    @property
    def alarms(self) -> AlarmService: ...
    @property
    def evaluations(self) -> EvaluationService: ...
    @property
    def meters(self) -> Meters: ...
    @property
    def engine(self) -> InferenceEngine | None: ...
    @property
    def pinned(self) -> PinnedVersions | None: ...

    @property
    def describe_token(self) -> Callable[[int], tuple[str, tuple[int, ...] | None]] | None:
        """Token id → (text, bytes; None for a special token); None until the model is loaded."""

    @property
    def leading(self) -> bool: ...
    @property
    def spool(self) -> SpoolState: ...

    async def readiness(self) -> Readiness:
        """Whether chats are answered now, and what is missing."""

    async def active_version(self) -> PolicyVersionRow:
        """The version that serves, from the database: known before the engine is."""


async def get_backend(request: Request) -> Backend:
    """Async: FastAPI runs a plain function in a thread, for a third of what a score costs."""
    return cast(Backend, request.app.state.backend)


BackendDependency = Annotated[Backend, Depends(get_backend)]
