"""What the pool asks of one of its engines, and of where they come from. Owns the protocol; knows nothing of how a replica is reached."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Protocol

from online_sao.inference.engine import EngineRequest, SwapReport, TokenDelta
from online_sao.models.fingerprint import ServedDigest


class Replica(Protocol):
    """One engine somewhere else. Its calls are those of InferenceEngine, and raise ReplicaLostError once its process or its engine has ended: then
    only ``stop`` is left to call."""

    @property
    def place(self) -> str:
        """Where it runs, for people. Known once started."""

    @property
    def max_top_logprobs(self) -> int: ...

    @property
    def logprob_tolerance(self) -> float: ...

    @property
    def serves_pinned(self) -> bool: ...

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None: ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]: ...

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport: ...

    async def score_text(self, token_ids: Sequence[int]) -> list[float]: ...

    async def served_digest(self) -> ServedDigest: ...

    async def ended(self) -> str:
        """Returns, saying why, when a started replica can serve no longer."""

    async def stop(self) -> None:
        """End its process. Whoever still waits for it gets ReplicaLostError. At any time, as often as one likes."""


class ReplicaSource(Protocol):
    """Where replicas come from. ``open`` before the first, ``close`` after the last; again if need be."""

    async def open(self) -> None: ...

    @property
    def problem(self) -> str | None:
        """Why no replica can come from here until it is closed and opened again. None: they can."""

    async def create(self, number: int) -> Replica: ...

    async def close(self) -> None: ...
