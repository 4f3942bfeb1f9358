"""What is measured of answers: means, windows, variety, and samples of one frozen version. Knows nothing of how a run goes on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from online_sao.errors import ConfigurationError
from online_sao.simulation.client import Answer, CallFailedError, Service
from online_sao.simulation.plan import Ask, Phase


class Display(Protocol):
    """Where a run says how far it is."""

    def stage(self, name: str, total: int) -> None: ...
    def step(self, score: float | None, note: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Answers to some asks, unstored and unscored on the service's side. Failed calls are left out."""

    asks: tuple[Ask, ...]
    texts: tuple[str, ...]
    policy_versions: tuple[int, ...]

    def scores(self, phase: Phase) -> list[float]:
        """What the users of ``phase`` would have given."""
        return [ask.score(phase, text) for ask, text in zip(self.asks, self.texts, strict=True)]

    def as_dict(self, phase: Phase) -> dict[str, Any]:
        scores = self.scores(phase)
        return {
            "policy_versions": sorted(set(self.policy_versions)),
            "mean": mean(scores),
            "distinct_2": distinct_2(self.texts),
            "scores": scores,
            "texts": list(self.texts),
        }


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def window_means(scores: Sequence[float | None], window: int, first: int = 0) -> list[dict[str, Any]]:
    """Mean of every full, or last partial, run of ``window`` scores, in order; failed ones (None) left out. ``first``: index of the first."""
    return [
        {
            "first": first + start,
            "last": first + min(start + window, len(scores)) - 1,
            "mean": mean([s for s in scores[start : start + window] if s is not None]),
        }
        for start in range(0, len(scores), window)
    ]


def distinct_2(texts: Sequence[str]) -> float | None:
    """Different pairs of neighbouring words over all pairs, case ignored (Li et al., arXiv 1510.03055); None without pairs.

    It falls with the number of texts: compare equal numbers of answers to the same prompts.
    """
    pairs = [pair for words in (text.lower().split() for text in texts) for pair in itertools.pairwise(words)]
    return len(set(pairs)) / len(pairs) if pairs else None


async def sample(service: Service, model: str, asks: Sequence[Ask], phase: Phase, users: int, display: Display) -> Sample:
    """Answer each ask once, at most ``users`` together, without storing; ``display`` is shown the scores by ``phase``."""
    slots = asyncio.Semaphore(users)

    async def answer(ask: Ask) -> Answer | None:
        async with slots:
            try:
                answer = await service.chat(model, ask.prompt, user="control", stream=False, store=False)
            except CallFailedError:
                display.step(None)
                return None
            display.step(ask.score(phase, answer.text))
            return answer

    answered = [(ask, got) for ask, got in zip(asks, await asyncio.gather(*map(answer, asks)), strict=True) if got is not None]
    return Sample(tuple(ask for ask, _ in answered), tuple(a.text for _, a in answered), tuple(a.policy_version for _, a in answered))


def require_one_version(*samples: Sample) -> None:
    """Raises ConfigurationError where the control was answered by several versions: it would not be frozen."""
    versions = sorted({version for control in samples for version in control.policy_versions})
    if len(versions) > 1:
        raise ConfigurationError(
            f"The policy changed while the frozen control was sampled (versions {versions[0]} to {versions[-1]}). "
            "Wait until the learner has nothing left to learn from, or pause it, then start again; or run with --no-control."
        )
