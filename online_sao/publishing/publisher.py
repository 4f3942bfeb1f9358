"""The learner's side of publishing: the record of a committed update, its files in the policy store, and the one transaction that makes it known.

Owns what belongs to that transaction (update, version, trajectories, head) and what may refuse it. Knows nothing of how weights are computed or
saved: it is given a function that writes the adapter's files. It runs again after a crash, with the same record, to the same end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from online_sao.errors import LeaseLostError
from online_sao.publishing import lifecycle
from online_sao.publishing.lifecycle import TrainedTrajectory
from online_sao.publishing.policy_store import write_version
from online_sao.storage.repositories import learner, policies, trajectories, updates
from online_sao.storage.session import Session
from online_sao.storage.tables import PolicyVersionRow, UpdateRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedUpdate:
    """An update that passed the gates. It is the manifest of its checkpoint, and all that the database is told of it.

    ``update_number`` and ``policy_version`` are new; ``parent_version`` is the head it started from, in ``lineage_epoch``.
    """

    update_number: int
    claim_id: str
    lineage_epoch: int
    parent_version: int
    policy_version: int
    trajectories: tuple[TrainedTrajectory, ...]
    served_digest: tuple[float, ...]
    metrics: dict[str, float]
    ratio_histogram: dict[str, Any]
    started_at: float
    finished_at: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CommittedUpdate:
        trajectories = tuple(TrainedTrajectory(**item) for item in data["trajectories"])
        return cls(**{**data, "trajectories": trajectories, "served_digest": tuple(data["served_digest"])})


@dataclass(frozen=True, slots=True)
class RefusedUpdate:
    """An update that a gate refused, or that could not be computed. It moved no weights."""

    update_number: int
    claim_id: str
    lineage_epoch: int
    parent_version: int
    reason: str
    metrics: dict[str, float]
    ratio_histogram: dict[str, Any]
    started_at: float
    finished_at: float


def write_files(store: Path, update: CommittedUpdate, base_digest: str, write_adapter: Callable[[Path], object]) -> Path:
    """Put the version's files into the policy store. Blocks. What is there already and is right stays. Returns the version's folder."""
    return write_version(
        store,
        version=update.policy_version,
        parent=update.parent_version,
        lineage_epoch=update.lineage_epoch,
        update=update.update_number,
        served_digest=update.served_digest,
        base_digest=base_digest,
        write_files=write_adapter,
    )


async def record_committed(session: Session, update: CommittedUpdate, *, folder: Path, now: float) -> None:
    """The transaction: the update, its version STAGED, its trajectories TRAINED, the head moved.

    Raises LeaseLostError, and the caller must discard the update, if the lineage it belongs to was abandoned meanwhile. Nothing else may stop it:
    the commit point is passed, the weights have learned. A trajectory whose claim was broken after that point (erased, say) is left as it is.
    """
    row = await learner.get(session, lock=True)
    if (row.lineage_epoch, row.head_version) != (update.lineage_epoch, update.parent_version):
        raise LeaseLostError(
            f"Update {update.update_number} continues version {update.parent_version} of lineage {update.lineage_epoch}, "
            f"but the learner now stands on version {row.head_version} of lineage {row.lineage_epoch}."
        )
    await updates.insert(
        session,
        UpdateRow(
            update_number=update.update_number,
            lineage_epoch=update.lineage_epoch,
            claim_id=update.claim_id,
            policy_version=update.policy_version,
            parent_version=update.parent_version,
            accepted=True,
            reason=None,
            metrics=dict(update.metrics),
            ratio_histogram=dict(update.ratio_histogram),
            started_at=update.started_at,
            finished_at=update.finished_at,
        ),
    )
    await policies.insert(
        session,
        PolicyVersionRow(
            version=update.policy_version,
            parent=update.parent_version,
            lineage_epoch=update.lineage_epoch,
            update_number=update.update_number,
            path=folder.name,
            served_digest=list(update.served_digest),
            created_at=now,
        ),
    )
    left = await lifecycle.finish_trained(
        session, update.trajectories, claim_id=update.claim_id, update_number=update.update_number, now=now, recovered=True
    )
    if left:
        logger.warning("update %d used trajectories %s, which were taken from it after its commit point", update.update_number, left)
    await learner.set_head(session, head_version=update.policy_version, head_update=update.update_number)


async def record_refused(session: Session, update: RefusedUpdate, now: float) -> None:
    """The transaction for an update that goes nowhere: its row, and the trajectories its claim still holds REJECTED with the reason."""
    await updates.insert(
        session,
        UpdateRow(
            update_number=update.update_number,
            lineage_epoch=update.lineage_epoch,
            claim_id=update.claim_id,
            policy_version=None,
            parent_version=update.parent_version,
            accepted=False,
            reason=update.reason,
            metrics=dict(update.metrics),
            ratio_histogram=dict(update.ratio_histogram),
            started_at=update.started_at,
            finished_at=update.finished_at,
        ),
    )
    held = await trajectories.claimed_ids(session, update.claim_id)
    await lifecycle.reject(session, held, claim_id=update.claim_id, update_number=update.update_number, reason=update.reason, now=now)
