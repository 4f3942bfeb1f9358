"""Value pretraining on request, with no learner running: the composition root of ``online-sao pretrain-value``.

Takes the learner's lease, stands where the learner would, trains its value model on what is logged, and leaves it for the next learner to find.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from online_sao.background import Background
from online_sao.config import Settings
from online_sao.errors import ConfigurationError
from online_sao.learner.checkpoints import Checkpoints
from online_sao.learner.value_training import PretrainingReport
from online_sao.runtime.learner_recovery import LearnerRecovery
from online_sao.runtime.learner_setup import open_learner
from online_sao.runtime.value_pretraining import ValuePretraining
from online_sao.storage.migrations import require_current
from online_sao.storage.repositories import learner as learner_row
from online_sao.storage.repositories import leases
from online_sao.storage.session import Database


async def pretrain_value(settings: Settings, progress: Callable[[int, int], None]) -> PretrainingReport:
    """Raises ConfigurationError where a learner is running, too little is logged, or the recipe has no value model to pretrain."""
    database = Database(settings.database_url)
    try:
        await require_current(database)
        owner = leases.new_owner()
        async with database.write() as session:
            await leases.acquire(session, "learner", owner, time.time())
        try:
            return await _pretrain(settings, database, progress)
        finally:
            async with database.write() as session:
                await leases.release(session, "learner", owner)
    finally:
        await database.dispose()


async def _pretrain(settings: Settings, database: Database, progress: Callable[[int, int], None]) -> PretrainingReport:
    compute = Background()
    learner = await compute.run(lambda: open_learner(settings))
    if not learner.recipe.pretrains_values:
        lacks = "takes its value model as it begins" if learner.recipe.uses_values else "has no value model"
        raise ConfigurationError(
            f"The recipe {learner.recipe.name} {lacks}. Set learning.recipe to one whose value model is pretrained, for example sao."
        )
    checkpoints = Checkpoints(settings.checkpoints_dir)
    await LearnerRecovery(database, learner, compute, checkpoints, settings.policy_store_dir).run()
    report = await ValuePretraining(database, learner, compute, settings.learning, lambda: False).run(progress)
    if report is None:
        raise ConfigurationError("There are no scored interactions to learn from yet. Collect some first: online-sao serve --no-learner.")
    if report.epochs:
        async with database.read() as session:
            update = (await learner_row.get(session)).head_update
        await compute.run(lambda: checkpoints.write_value(update, learner.save))
    return report
