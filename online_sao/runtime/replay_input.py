"""What a replay needs before it begins: an export that can be trained on, and a folder that holds no replay yet. Owns those checks and the reading.

Knows nothing of models, and imports nothing heavy: what cannot work is said at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from online_sao.errors import ConfigurationError
from online_sao.experience.rewards import combine
from online_sao.experience.trajectories import build_trajectory
from online_sao.service.export import FORMAT, HEADER
from online_sao.types import Completion, Feedback, Interaction, SamplingParams, Trajectory, VersionSpan

METRICS_FILE = "updates.jsonl"


@dataclass(slots=True)
class Source:
    """What an export holds for training, in the order in which scores came. ``left_out``: reason → interactions that cannot train."""

    header: Mapping[str, Any]
    trajectories: list[Trajectory] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def read(path: Path) -> Source:
    """Raises ConfigurationError, naming the line, where the file is no export or of a newer format; and where nothing in it can train."""
    lines = _lines(path)
    number, header = next(lines, (0, {}))
    if not number:
        raise ConfigurationError(f"{path} is empty: no export. Make one with `online-sao export`.")
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
    if not found:
        why = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in source.left_out.items()) or "it is empty"
        raise ConfigurationError(f"{path} holds no scored interaction that can train ({why}).")
    source.trajectories = [trajectory for _, trajectory in sorted(found, key=lambda item: item[0])]
    return source


def check_out(out: Path) -> None:
    """Raises ConfigurationError where ``out`` cannot take a replay."""
    if (out / METRICS_FILE).exists():
        raise ConfigurationError(f"{out} holds a replay already. Choose another folder with --out.")
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out} is a file. Choose a folder with --out.")


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
