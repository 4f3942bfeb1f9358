"""What the page shows at one moment, and what it needs of the server to know it. Owns the reading; how it is drawn is in panels.py and chart.py."""

from __future__ import annotations

from dataclasses import dataclass

from api.dependencies import Backend
from online_sao.inference.engine import EngineLoad
from online_sao.service.status import StatusSnapshot

SCORES_SHOWN = 400


@dataclass(frozen=True, slots=True)
class View:
    """The database's state, and the engine's: version being sampled from (None: not serving yet) and how busy it is."""

    snapshot: StatusSnapshot
    serving_version: int | None
    load: EngineLoad

    def age(self, at: float) -> float:
        """Seconds from ``at`` (Unix) to the moment the numbers were read."""
        return self.snapshot.as_of - at


async def read(backend: Backend) -> View:
    """Everything the page shows, read together."""
    engine = backend.engine
    return View(
        snapshot=await backend.status.snapshot(scores=SCORES_SHOWN),
        serving_version=None if engine is None else engine.policy_version,
        load=EngineLoad(0, 0) if engine is None else engine.load(),
    )
