"""The learner where Ray has put it: one rank in the actor's own process, several as the workers of a Ray Train run. Owns how it is begun, begun again
and ended there; the learning itself is that of any learner process (runtime/learning.py, runtime/ranks.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from typing import Any

import ray
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from online_sao import logs
from online_sao.config import Settings
from online_sao.errors import ConfigurationError, LeaseHeldError, RanksLostError
from online_sao.runtime.cluster.learner_host import AGAIN_SECONDS
from online_sao.runtime.learning import live
from online_sao.runtime.ranks import backend, follow, set_threads

logger = logging.getLogger(__name__)

ASK_SECONDS = 0.5
"""Between two looks of rank 0 at whether the actor that began it wants it to end."""


class PlacedLearner:
    """``run`` once, until ``stop`` is set. ``gave_up``: why it cannot work as it is set up, if so; ``ended``: it has stopped as it was told."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self.gave_up: str | None = None
        self.ended = False

    def run(self) -> None:
        """Raises RanksLostError where this process should begin anew."""
        several = self._settings.learning.ranks > 1
        try:
            while not self._stop.is_set():
                try:
                    code = self._train() if several else _be_the_learner(self._settings, self._stop)
                except LeaseHeldError as error:
                    logger.warning("%s", error.message)
                    self._stop.wait(AGAIN_SECONDS)
                    continue
                if code != 0 and not several:
                    raise RanksLostError("The learner has ended; the lines above say why.")
                if code != 0:
                    self._stop.wait(AGAIN_SECONDS)
            self.ended = True
        except ConfigurationError as error:
            self.gave_up = error.message

    def _train(self) -> int:
        """One run of all ranks. Raises ConfigurationError where rank 0 did; 1 where anything else ended it."""
        settings = self._settings
        folder = settings.storage.data_dir.absolute() / "ray"
        shutil.rmtree(folder, ignore_errors=True)  # Ray Train's own notes, of no use to a run that resumes from our checkpoints
        cluster = settings.cluster
        trainer = TorchTrainer(
            _be_a_rank,
            train_loop_config={"environment": settings.to_environment(), "host": ray.get_runtime_context().current_actor},
            torch_config=TorchConfig(backend=backend(settings), timeout_s=int(settings.learning.rank_timeout_seconds)),
            scaling_config=ScalingConfig(
                num_workers=settings.learning.ranks,
                use_gpu=cluster.learner_gpus > 0,
                resources_per_worker={"CPU": cluster.learner_cpus, "GPU": cluster.learner_gpus},
            ),
            # A rank that is lost ends the run, and the loop around this begins another: Ray Train cannot tell what a new start would not mend.
            run_config=RunConfig(
                name="learner",
                storage_path=str(folder),
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                worker_runtime_env={"env_vars": {"OMP_WAIT_POLICY": "PASSIVE"}},
            ),
        )
        try:
            trainer.fit()
        except WorkerGroupError as error:
            for failure in error.worker_failures.values():
                cause = getattr(failure, "_base_exc", failure)
                if isinstance(cause, ConfigurationError):
                    raise cause from error
            logger.warning("a rank of the learner was lost; all of them are started again: %s", str(error).strip().splitlines()[-1])
            return 1
        except TrainingFailedError as error:
            logger.warning("the run of the learner's ranks failed, and is started again: %s", str(error).strip().splitlines()[-1])
            return 1
        return 0


def _be_a_rank(told: dict[str, Any]) -> None:
    """In a worker of Ray Train, which has joined the process group already."""
    os.environ.update(told["environment"])
    settings = Settings()
    logs.configure(settings.server.log_format)
    os.nice(settings.learning.niceness)
    if dist.get_rank() > 0:
        set_threads(settings)
        follow(settings)
        return
    stop = threading.Event()
    threading.Thread(target=_ask, args=(told["host"], stop), daemon=True).start()
    if _be_the_learner(settings, stop) != 0:
        raise RanksLostError("Rank 0 has ended; the lines above say why.")


def _ask(host: Any, stop: threading.Event) -> None:
    """Set ``stop`` when the actor that began this run wants it to end, or is gone."""
    while not stop.wait(ASK_SECONDS):
        try:
            wanted = ray.get(host.stopping.remote())
        except Exception:
            wanted = True
        if wanted:
            stop.set()


def _be_the_learner(settings: Settings, stop: threading.Event) -> int:
    """``live``, ended by a thread's event."""
    set_threads(settings)

    async def until_told() -> int:
        stopping = asyncio.Event()

        async def watch() -> None:
            while not stop.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            stopping.set()

        watching = asyncio.create_task(watch())
        try:
            return await live(settings, stopping)
        finally:
            watching.cancel()

    return asyncio.run(until_told())
