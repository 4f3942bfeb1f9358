"""Teaching the value model what logged scores say, before it advises the policy. Owns when that is done and what is read for it.

A fresh learner beside a log of scored interactions (collected with no learner, or left by one whose checkpoints are gone) need not begin with a
critic that knows nothing. Consumes no trajectory, moves no policy weight, and keeps nothing that does not explain a held-out part better.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from online_sao.background import Background
from online_sao.config import LearningSettings
from online_sao.learner.learner import Learner
from online_sao.learner.value_training import PretrainingReport
from online_sao.runtime.batches import buildable
from online_sao.storage.repositories import trajectories
from online_sao.storage.session import Database

logger = logging.getLogger(__name__)


class ValuePretraining:
    """``compute`` is the only user of ``learner``. ``cancelled`` is asked before every forward pass."""

    def __init__(self, database: Database, learner: Learner, compute: Background, settings: LearningSettings, cancelled: Callable[[], bool]) -> None:
        self._database = database
        self._learner = learner
        self._compute = compute
        self._settings = settings
        self._cancelled = cancelled

    async def due(self) -> bool:
        """The value model knows nothing yet, the recipe wants it pretrained, and enough scored interactions are logged."""
        least = self._settings.value_pretraining_min_scores
        if least == 0 or not self._learner.recipe.pretrains_values or not self._learner.value_is_untrained:
            return False
        async with self._database.read() as session:
            return await trajectories.count_scored(session, limit=least) >= least

    async def run(self, progress: Callable[[int, int], None] = lambda done, of: None) -> PretrainingReport | None:
        """On the newest scored interactions. None where fewer than two can be read. Raises UpdateCancelledError; then nothing has changed."""
        async with self._database.read() as session:
            logged = await trajectories.load_scored(session, self._settings.value_pretraining_max_scores)
        usable = [trajectory for item in logged if (trajectory := buildable(item, self._learner.vocabulary_size)) is not None]
        if len(usable) < 2:
            return None
        report = await self._compute.run(
            lambda: self._learner.pretrain_value(
                usable,
                max_tokens=self._settings.microbatch_tokens,
                seed=self._settings.seed,
                cancelled=self._cancelled,
                progress=progress,
            )
        )
        kept = f"{report.epochs} epochs kept" if report.epochs else "nothing kept"
        logger.info(
            "value model pretrained on %d scored interactions: explained variance of %d held out %.2f → %.2f (%s)",
            report.trained,
            report.held_out,
            report.explained_variance_before,
            report.explained_variance_after,
            kept,
        )
        return report
