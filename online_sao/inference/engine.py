"""The engine contract: what every inference engine does, in records. Owns no model, no queue, no policy; knows nothing of HTTP or storage.

An engine takes token ids and gives token ids. Every token comes with the logprob it was really sampled with and the version that produced it.
Text, stop strings and chat templates live in decoding.py and renderer.py and are the same for every engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from online_sao.models.fingerprint import ServedDigest

FP32_LOGPROB_TOLERANCE = 1e-3
"""Two fp32 implementations of one forward pass (docs/design.md §7.7)."""


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """A published version to sample from whichever one is served. ``adapter_dir`` None: the base model. ``served_digest``: what its weights must
    have; empty: nobody said."""

    policy_version: int
    adapter_dir: Path | None
    served_digest: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One completion to sample. ``temperature`` 0 is greedy (argmax, logprob of the untempered distribution). ``eos_token_ids`` end it.

    ``seed`` (best effort): alone on the engine, the same request under the same version gives the same tokens; other requests are not affected, and
    tokens come from the same distribution as without one. ``top_logprobs``: how many of the likeliest tokens to report at each place, at most the
    engine's ``max_top_logprobs``. ``pinned``: sample all of it from that version (only on an engine that ``serves_pinned``). ``background``: the
    service asks it of itself, and takes no user's place.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    eos_token_ids: tuple[int, ...]
    seed: int | None = None
    top_logprobs: int = 0
    pinned: PinnedVersion | None = None
    background: bool = False


TopLogprobs = tuple[tuple[int, float], ...]
"""The likeliest tokens at one place with their logprobs, likeliest first, under the distribution really sampled from."""


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New tokens of one completion, in order. All tokens of one delta come from one ``policy_version``. ``finish_reason`` is set on the last
    delta only (whose token_ids may be empty). ``top_logprobs``: one entry a token where the request asked for them, else empty."""

    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    policy_version: int
    finish_reason: Literal["stop", "length"] | None = None
    top_logprobs: tuple[TopLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class SwapReport:
    """One weight swap as it happened. ``pause_seconds``: how long no token was generated; ``served_digest``: fingerprint of what is served now."""

    policy_version: int
    pause_seconds: float
    total_seconds: float
    requests_in_flight: int
    recomputed_tokens: int
    served_digest: ServedDigest


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is now, in completions that are not in the background. ``kv_cache_usage``: the part of the KV cache that is taken, from 0
    to 1; None: the engine does not say."""

    running: int
    waiting: int
    kv_cache_usage: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One of several engines that serve as one. ``place``: where it runs. ``policy_version`` None: it does not serve, and ``problem`` says why."""

    number: int
    place: str
    serving: bool
    policy_version: int | None
    running: int
    problem: str | None = None


class SingleEngine:
    """What the contract asks of engines that are several, as one answers it that is alone."""

    recovering = False
    replicas: tuple[ReplicaStatus, ...] = ()


class InferenceEngine(Protocol):
    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        """Load the base model, apply the adapter of ``policy_version`` (None: base) and begin to serve."""

    @property
    def policy_version(self) -> int:
        """The version that samples the next token."""

    @property
    def healthy(self) -> bool:
        """Whether requests can be served now. Once False, only stop and start help, unless it is ``recovering``."""

    @property
    def recovering(self) -> bool:
        """Whether it comes back by itself while it is not healthy."""

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """The engines that serve as this one. Empty: it is one."""

    @property
    def max_top_logprobs(self) -> int:
        """Most alternatives a request may ask for at each place. 0: this engine has none."""

    @property
    def logprob_tolerance(self) -> float:
        """Largest mean |behavior logprob − that of an fp32 forward pass of the same weights|, in nats, that its number format explains."""

    @property
    def serves_pinned(self) -> bool:
        """Whether it serves other versions beside the current one to requests that ask for them. If so, a request also ends on the version it began
        with; if not, it goes on with the new weights after a swap."""

    def load(self) -> EngineLoad: ...

    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """Sample one completion. Closing the iterator (aclose, or cancelling the task) aborts the request and frees its slot.

        Raises EngineError if the engine fails the request, OverloadedError if there is no room for the version it is pinned to.
        """

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        """Have a published version sample whatever begins from now on; no request running is lost. On failure the old version still serves."""

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probability of each token but the first given those before it, untempered, under the weights being served. Users' decoding waits in
        pieces of a fraction of a second. Raises EngineError if a swap comes in between and mixes versions, ContextLengthError if it is too long."""

    async def served_digest(self) -> ServedDigest:
        """Fingerprint of the weights being served, read from the weights themselves."""

    async def stop(self) -> None: ...
