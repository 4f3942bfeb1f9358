"""From vLLM's outputs to TokenDeltas: which version each token is of, its logprob, the likeliest tokens at its place. Pure; keeps the place in one
request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

from online_sao.errors import EngineError
from online_sao.inference.engine import TokenDelta, TopLogprobs


class NoDistributionError(EngineError):
    """The weights gave numbers that are none. Keys and values computed from them lie in the cache."""


class Spans:
    """Where, in one request, the version changes. ``state`` is vLLM's record of the request, None if that is gone already: vLLM notes there each
    change of version with the place of its first token, and tells it on the last output only."""

    def __init__(self, state: Any | None) -> None:
        self._state = state
        self.seen = 0

    def take(self, count: int, told: Sequence[Any] | None) -> Iterator[tuple[int, int]]:
        """(tokens, version) of each run of one version among the next ``count`` tokens. ``told``: the spans of a last output."""
        starts = [(span.start, span.version) for span in told] if told is not None else [(at, label) for label, at in self._starts()]
        first, self.seen = self.seen, self.seen + count
        for (start, label), (end, _) in pairwise([*starts, (self.seen, "")]):
            tokens = min(end, self.seen) - max(start, first)
            if tokens > 0:
                yield tokens, int(label)

    def _starts(self) -> list[tuple[str, int]]:
        return [] if self._state is None else list(self._state.weight_version_starts)


class OneVersion:
    """As Spans, of a request that stays on the version it began with."""

    def __init__(self, version: int) -> None:
        self._version = version

    def take(self, count: int, told: Sequence[Any] | None) -> Iterator[tuple[int, int]]:
        if count:
            yield count, self._version


def to_deltas(output: Any, spans: Spans | OneVersion, top_logprobs: int) -> Iterator[TokenDelta]:
    """The deltas of one output: one for each version in it, the last with the finish reason. Raises EngineError where the model gave no
    distribution."""
    completion = output.outputs[0]
    token_ids = tuple(completion.token_ids)
    reason: Literal["stop", "length"] | None = None
    if output.finished:
        if completion.finish_reason not in ("stop", "length"):
            raise EngineError(f"vLLM ended this request: {completion.finish_reason}.")
        reason = completion.finish_reason
    logprobs, likeliest = _logprobs(completion.logprobs, token_ids, top_logprobs)
    if not all(map(math.isfinite, logprobs)):
        raise NoDistributionError("The model gave no finite distribution for the next token.")
    runs = list(spans.take(len(token_ids), completion.weight_versions if output.finished else None))
    if sum(count for count, _ in runs) != len(token_ids):
        raise EngineError("vLLM did not say which weights a token is of.")
    done = 0
    for number, (count, version) in enumerate(runs):
        part = slice(done, done + count)
        done += count
        yield TokenDelta(token_ids[part], logprobs[part], version, reason if number == len(runs) - 1 else None, likeliest[part])


def _logprobs(flat: Any, token_ids: Sequence[int], wanted: int) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
    """Of each token, and of the ``wanted`` likeliest at its place, likeliest first. vLLM puts the sampled token first, and sometimes again if it is
    among them; what top-p removed is among them with minus infinity."""
    chosen, likeliest = [], []
    for token, start, end in zip(token_ids, flat.start_indices, flat.end_indices, strict=True):
        if flat.token_ids[start] != token:
            raise EngineError("vLLM's logprobs are not of the tokens it gave.")
        chosen.append(flat.logprobs[start])
        if wanted:
            ranked = {flat.token_ids[at]: (flat.ranks[at], flat.logprobs[at]) for at in range(start, end)}
            top = sorted((rank, other, logprob) for other, (rank, logprob) in ranked.items() if rank <= wanted and math.isfinite(logprob))
            likeliest.append(tuple((other, logprob) for _, other, logprob in top))
    return tuple(chosen), tuple(likeliest)
