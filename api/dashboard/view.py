"""What every tab of the page needs of the server, read together. Owns the reading; how it is drawn is in the panels and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.dependencies import Backend
from online_sao.algorithm.recipes import recipe
from online_sao.config import Settings
from online_sao.inference.engine import EngineLoad, ReplicaStatus
from online_sao.service.alarms import AlarmStatus
from online_sao.service.control import RollbackStatus
from online_sao.service.history import ShiftStatus
from online_sao.service.interactions import Unused
from online_sao.service.status import StatusSnapshot, VersionStatus
from online_sao.types import VersionState

SCORES_SHOWN = 400
VERSIONS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class View:
    """The database's state, and the engine's: version being sampled from (None: not serving yet) and how busy it is. ``batch_size``: scored answers
    that the next update waits for. ``score_range``: lowest and highest score. ``shifts``: None until they have been looked for. ``unused``: why
    answers were not used; ``without_effect``: why scores of the last day had none. ``past_alarms``: those that are cleared, newest first.
    ``replicas``: the engines that serve as one; empty where it is one."""

    snapshot: StatusSnapshot
    serving_version: int | None
    load: EngineLoad
    shifts: Sequence[ShiftStatus] | None = ()
    rollbacks: Sequence[RollbackStatus] = ()
    batch_size: int = 8
    score_range: tuple[float, float] = (0.0, 1.0)
    unused: Sequence[Unused] = ()
    without_effect: Sequence[Unused] = ()
    past_alarms: Sequence[AlarmStatus] = ()
    replicas: Sequence[ReplicaStatus] = ()

    def age(self, at: float) -> float:
        """Seconds from ``at`` (Unix) to the moment the numbers were read."""
        return self.snapshot.as_of - at

    def lineage(self) -> set[int]:
        """The versions shown that the learner came by, the one it stands on included."""
        parents = {version.version: version.parent for version in self.snapshot.versions}
        found: set[int] = set()
        at: int | None = self.snapshot.learner.head_version
        while at is not None and at not in found:
            found.add(at)
            at = parents.get(at)
        return found

    def can_return_to(self, version: VersionStatus) -> bool:
        """Whether it has served before, does not now, and its files are kept."""
        return version.state is VersionState.RETIRED and version.files_removed_at is None


def batch_size(settings: Settings) -> int:
    """Scored answers that make an update."""
    return settings.learning.batch_size or recipe("sao", settings.learning.preset).batch_size


async def read(
    backend: Backend,
    shifts: Sequence[ShiftStatus] | None,
    unused: Sequence[Unused] = (),
    without_effect: Sequence[Unused] = (),
    past_alarms: Sequence[AlarmStatus] = (),
) -> View:
    """Everything that is shown; ``shifts``, ``unused``, ``without_effect`` and ``past_alarms`` are those found last."""
    engine, settings = backend.engine, backend.settings
    return View(
        snapshot=await backend.status.snapshot(scores=SCORES_SHOWN, versions=VERSIONS_SHOWN),
        serving_version=None if engine is None else engine.policy_version,
        load=EngineLoad(0, 0) if engine is None else engine.load(),
        shifts=shifts,
        rollbacks=await backend.control.rollbacks(),
        batch_size=batch_size(settings),
        score_range=(settings.reward.score_min, settings.reward.score_max),
        unused=unused,
        without_effect=without_effect,
        past_alarms=past_alarms,
        replicas=() if engine is None else engine.replicas,
    )
