"""``online-sao replay``: learning again, offline, from an export, with another recipe. Owns how trajectories become batches, and what is kept.

The update is the learner's own, gates included. It is off-policy, and says so: answers were sampled by the policies of that time, the importance
ratios are computed against the logprobs logged then, and nothing new is sampled. So it compares how recipes learn from the same scores; it cannot say
how users would have liked the answers of the policy it makes. Nothing expires for lag here: masked fraction and ESS tell how far off it is.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from online_sao.algorithm.recipes import Recipe
from online_sao.config import Settings
from online_sao.errors import ConfigurationError
from online_sao.experience.batching import pack
from online_sao.learner.learner import Learner
from online_sao.models.catalog import obtain
from online_sao.publishing import gates
from online_sao.runtime.learner_setup import alone
from online_sao.runtime.replay_input import METRICS_FILE, Source
from online_sao.runtime.tensorboard import MetricFiles
from online_sao.types import Trajectory

ADAPTER_FOLDER = "adapter"


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the replay. ``refused``: why a gate put the state back, or None."""

    number: int
    trajectories: int
    metrics: Mapping[str, float]
    refused: str | None
    seconds: float


def replay(settings: Settings, recipe: Recipe, source: Source, out: Path, tell: Callable[[Update], None]) -> list[Update]:
    """Train from the base on all of ``source``, a batch of the recipe at a time; ``tell`` hears of every update. Writes into ``out``: METRICS_FILE,
    TensorBoard files, and the policy at the end as a PEFT adapter. The last, incomplete batch is used too.

    Raises ConfigurationError if the tokens are of another model. ``source`` and ``out`` have been checked (replay_input).
    """
    policy = settings.policy
    model_path = obtain(policy.model, policy.cache_dir)
    learner = Learner.open(
        model_path,
        recipe,
        lora_rank=policy.lora_rank,
        lora_alpha=policy.lora_alpha,
        seed=settings.learning.seed,
        ranks=alone(settings),
    )
    largest = max(max(trajectory.token_ids) for trajectory in source.trajectories)
    if largest >= learner.vocabulary_size:
        raise ConfigurationError(f"The export holds token {largest}, the model {policy.model} has {learner.vocabulary_size}: name its model.")
    out.mkdir(parents=True, exist_ok=True)
    board = MetricFiles(out / "tensorboard")
    done = []
    with (out / METRICS_FILE).open("w", encoding="utf-8") as file:
        for number, batch in enumerate(_batches(source.trajectories, recipe.batch_size), 1):
            update = _update(settings, learner, number, batch)
            done.append(update)
            file.write(json.dumps(_record(update)) + "\n")
            file.flush()
            board.write(number, update.metrics, time.time())
            tell(update)
    board.close()
    (out / ADAPTER_FOLDER).mkdir()
    learner.export_adapter(out / ADAPTER_FOLDER)
    return done


def _update(settings: Settings, learner: Learner, number: int, batch: list[Trajectory]) -> Update:
    started = time.perf_counter()
    before = learner.snapshot()
    report = learner.update(pack(batch, settings.learning.microbatch_tokens, learner.ranks.at_once))
    refused = gates.check(report, settings.gates)
    if refused is not None:
        learner.restore(before)
    return Update(number, len(batch), report.metrics, refused, time.perf_counter() - started)


def _batches(trajectories: list[Trajectory], size: int) -> Iterator[list[Trajectory]]:
    for start in range(0, len(trajectories), size):
        yield trajectories[start : start + size]


def _record(update: Update) -> dict[str, Any]:
    metrics = {name: value if math.isfinite(value) else None for name, value in update.metrics.items()}
    return {"update": update.number, "trajectories": update.trajectories, "refused": update.refused, "seconds": update.seconds, "metrics": metrics}
