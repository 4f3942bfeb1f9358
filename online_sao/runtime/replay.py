"""``online-sao replay``: learning again, offline, from an export, with another recipe. Owns how an export becomes batches, and what is kept.

The update is the learner's own, gates included. It is off-policy, and says so: answers were sampled by the policies of that time, the importance
ratios are computed against the logprobs logged then, and nothing new is sampled. So it compares how recipes learn from the same scores; it cannot say
how users would have liked the answers of the policy it makes. Nothing expires for lag here: masked fraction and ESS tell how far off it is.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from online_sao.algorithm.recipes import Recipe
from online_sao.config import Settings
from online_sao.errors import ConfigurationError
from online_sao.experience.batching import pack
from online_sao.experience.rewards import combine
from online_sao.experience.trajectories import build_trajectory
from online_sao.learner.learner import Learner
from online_sao.models.catalog import obtain
from online_sao.publishing import gates
from online_sao.runtime.tensorboard import MetricFiles
from online_sao.service.export import FORMAT, HEADER
from online_sao.types import Completion, Feedback, Interaction, SamplingParams, Trajectory, VersionSpan

METRICS_FILE = "updates.jsonl"
ADAPTER_FOLDER = "adapter"


@dataclass(slots=True)
class Source:
    """What an export holds for training, in the order in which scores came. ``left_out``: reason → interactions that cannot train."""

    header: Mapping[str, Any]
    trajectories: list[Trajectory] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the replay. ``refused``: why a gate put the state back, or None."""

    number: int
    trajectories: int
    metrics: Mapping[str, float]
    refused: str | None
    seconds: float


def read(path: Path) -> Source:
    """Raises ConfigurationError, naming the line, where the file is no export or of a newer format."""
    lines = _lines(path)
    number, header = next(lines, (0, {}))
    if header.get("object") != HEADER or not isinstance(header.get("format"), int):
        raise ConfigurationError(f"{path} is no export: its first line is no header. Make one with `online-sao export`.")
    if header["format"] > FORMAT:
        raise ConfigurationError(f"{path} has format {header['format']}, this version reads up to {FORMAT}. Install the newer version.")
    source = Source(header)
    found: list[tuple[float, Trajectory]] = []
    for number, line in lines:
        try:
            reason = _unusable(line)
            reward = None if reason is not None else _reward(line, header["reward"])
            if reward is None:
                source.left_out[reason or "not scored"] = source.left_out.get(reason or "not scored", 0) + 1
                continue
            scored_at = max(score["created"] for score in line["scores"] if score["counts"])
            found.append((scored_at, build_trajectory(number, [_interaction(line)], [reward])))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path}, line {number}: no interaction that can be read ({type(error).__name__}: {error}).") from error
    source.trajectories = [trajectory for _, trajectory in sorted(found, key=lambda item: item[0])]
    return source


def replay(settings: Settings, recipe: Recipe, source: Source, out: Path, tell: Callable[[Update], None]) -> list[Update]:
    """Train from the base on all of ``source``, a batch of the recipe at a time; ``tell`` hears of every update. Writes into ``out``: METRICS_FILE,
    TensorBoard files, and the policy at the end as a PEFT adapter. The last, incomplete batch is used too.

    Raises ConfigurationError if there is nothing to train on, the tokens are of another model, or ``out`` holds a replay already.
    """
    if not source.trajectories:
        raise ConfigurationError(f"The export holds no scored interaction that can train ({source.left_out or 'it is empty'}).")
    if (out / METRICS_FILE).exists():
        raise ConfigurationError(f"{out} holds a replay already. Choose another folder with --out.")
    policy = settings.policy
    model_path = obtain(policy.model, policy.cache_dir)
    learner = Learner.open(model_path, recipe, lora_rank=policy.lora_rank, lora_alpha=policy.lora_alpha, seed=settings.learning.seed)
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
    report = learner.update(pack(batch, settings.learning.microbatch_tokens))
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


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    line = json.loads(text)
                    if not isinstance(line, dict):
                        raise ConfigurationError(f"{path}, line {number}: no JSON object.")
                    yield number, line
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no file of JSON lines: {error}.") from error


def _unusable(line: dict[str, Any]) -> str | None:
    """Why an interaction cannot train, whatever its score."""
    if not line["stored"] or line["token_ids"] is None:
        return "kept without content"
    if line["finish_reason"] not in ("stop", "length"):
        return f"ended as {line['finish_reason'] or line['status']}"
    if not line["token_ids"]:
        return "no tokens"
    return _sampling(line).not_trainable_reason()


def _reward(line: dict[str, Any], settings: Mapping[str, Any]) -> float | None:
    feedback = [Feedback(score["metric"], score["value"]) for score in line["scores"] if score["counts"]]
    return combine(feedback, settings["metric_weights"], settings["score_min"], settings["score_max"])


def _sampling(line: dict[str, Any]) -> SamplingParams:
    sampling = line["sampling"]
    return SamplingParams(sampling["max_tokens"], sampling["temperature"], sampling["top_p"], tuple(sampling.get("stop") or ()))


def _interaction(line: dict[str, Any]) -> Interaction:
    completion = Completion(
        token_ids=tuple(line["token_ids"]),
        behavior_logprobs=tuple(line["behavior_logprobs"]),
        version_spans=tuple(VersionSpan(*span) for span in line["version_spans"]),
        text=line["text"] or "",
        finish_reason=line["finish_reason"],
    )
    return Interaction(line["completion_id"], line["choice"], tuple(line["prompt_ids"]), completion, _sampling(line))
