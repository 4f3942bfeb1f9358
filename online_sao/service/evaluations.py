"""Evaluations as records: what a version says to fixed prompts and how well it predicts a fixed text. Owns the measures; samples nothing.

distinct-2 = different word pairs / all word pairs, over the answers together (Li et al. 2016). Perplexity = exp(−mean log-likelihood a token).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from online_sao.storage.repositories import evaluations
from online_sao.storage.session import Database
from online_sao.storage.tables import EvaluationRow


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to one fixed prompt. ``distinct_2`` is None below two words."""

    prompt: str
    text: str
    tokens: int
    distinct_2: float | None


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """One version's evaluation. ``distinct_2`` and ``response_tokens`` (mean) are over all samples; None where there is nothing to measure."""

    policy_version: int
    perplexity: float | None
    perplexity_tokens: int | None
    distinct_2: float | None
    response_tokens: float | None
    samples: tuple[Sample, ...]
    created_at: float


class EvaluationService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, *, limit: int = 50, before: int | None = None) -> tuple[EvaluationStatus, ...]:
        """Newest version first; ``before``: only versions older than that one."""
        async with self._database.read() as session:
            return tuple(evaluation_status(row) for row in await evaluations.newest(session, limit, before=before))


def evaluation_status(row: EvaluationRow) -> EvaluationStatus:
    samples = tuple(Sample(item["prompt"], item["text"], item["tokens"], item["distinct_2"]) for item in row.samples)
    return EvaluationStatus(
        policy_version=row.policy_version,
        perplexity=row.perplexity,
        perplexity_tokens=row.perplexity_tokens,
        distinct_2=distinct_2([sample.text for sample in samples]),
        response_tokens=sum(sample.tokens for sample in samples) / len(samples) if samples else None,
        samples=samples,
        created_at=row.created_at,
    )


def distinct_2(texts: Sequence[str]) -> float | None:
    """In (0, 1]; None where no text has two words. Pairs do not reach over the end of a text."""
    pairs = [pair for text in texts for pair in _word_pairs(text)]
    return len(set(pairs)) / len(pairs) if pairs else None


def perplexity(logprobs: Sequence[float]) -> float | None:
    """None without tokens, or where the weights give no finite number."""
    if not logprobs or not all(map(math.isfinite, logprobs)):
        return None
    mean = -math.fsum(logprobs) / len(logprobs)
    return math.exp(mean) if mean < 700 else None


def _word_pairs(text: str) -> list[tuple[str, str]]:
    words = re.findall(r"[\w']+", text.lower())
    return list(itertools.pairwise(words))
