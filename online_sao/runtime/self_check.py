"""The self-check: does the engine sample from the weights the learner trains? Owns the comparison of probe logprobs; its bound came with the probe,
from the engine that sampled it.

An adapter that never reached the engine, a stale cache or a temperature applied twice all show here, and nowhere else so plainly.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

from online_sao.background import Background
from online_sao.errors import PolicyStoreError
from online_sao.learner.learner import Learner
from online_sao.publishing.policy_store import verify
from online_sao.storage.repositories import learner as learner_row
from online_sao.storage.repositories import policies, probes
from online_sao.storage.session import Database
from online_sao.storage.tables import ProbeRow

logger = logging.getLogger(__name__)

ALARM = "self-check failed"
"""How the pause reason of a failed self-check begins."""
UNUSABLE = 1e9
"""Stored in place of a difference that is not a number, which no column could hold."""


class SelfCheck:
    """``store``: the policy store's folder. ``compute``: where the forward passes run."""

    def __init__(self, database: Database, learner: Learner, compute: Background, store: Path) -> None:
        self._database = database
        self._learner = learner
        self._compute = compute
        self._store = store

    async def passes(self, head_version: int) -> bool:
        """Check the probes nobody has checked yet. False: they differ, and the learner has been paused with the reason. Serving goes on."""
        async with self._database.read() as session:
            unchecked = await probes.unchecked_of_newest_version(session)
            version = await policies.get(session, unchecked[0].policy_version) if unchecked else None
        if version is None:
            return True
        try:
            differences = await self._compute.run(lambda: self._differences(unchecked, version.version == head_version, version.path))
            problem = "the engine does not sample from the weights it should"
        except PolicyStoreError as error:
            differences, problem = [UNUSABLE] * len(unchecked), error.message
        worst, bound = max(zip(differences, (probe.tolerance for probe in unchecked), strict=True), key=lambda pair: pair[0] - pair[1])
        failed = worst > bound
        async with self._database.write() as session:
            for probe, difference in zip(unchecked, differences, strict=True):
                await probes.set_checked(session, probe.id, mean_abs_difference=difference, now=time.time())
            if failed:
                reason = f"{ALARM} for version {version.version}: mean |engine − learner| logprob is {worst:.3g}, above {bound:g}"
                await learner_row.pause(session, f"{reason} ({problem})")
        if failed:
            logger.error("%s for version %d (mean difference %.3g): %s. Learning is paused; serving goes on.", ALARM, version.version, worst, problem)
        return not failed

    def _differences(self, unchecked: Sequence[ProbeRow], on_head: bool, path: str | None) -> list[float]:
        """Mean |engine − learner| of every probe, under the weights of the version that sampled them."""
        if on_head:
            return [_difference(self._learner, probe) for probe in unchecked]
        folder = self._store / path if path is not None else None
        if folder is not None:
            verify(folder, base_digest=self._learner.identity.base_digest)
        with self._learner.standing_on(folder):
            return [_difference(self._learner, probe) for probe in unchecked]


def _difference(learner: Learner, probe: ProbeRow) -> float:
    """0 for a probe without tokens: there is nothing to differ."""
    if not probe.token_ids:
        return 0.0
    current = learner.score(probe.prompt_ids, probe.token_ids, 1.0)
    pairs = zip(current, probe.behavior_logprobs, strict=True)
    difference = math.fsum(abs(c - b) for c, b in pairs) / len(current)
    return difference if math.isfinite(difference) else UNUSABLE
