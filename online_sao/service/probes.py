"""Fixed prompts sampled under the version that serves, by one task in the background. What it samples serves two ends:

- the self-check (docs/design.md §7.7): two prompts at every swap, at once; ids and logprobs go to the learner, which compares them with its own;
- the evaluation: those two, six more and the perplexity of a fixed text, while no user waits for a place. Where versions come faster than that, the
  newest is evaluated and those between are skipped.

They are no interactions: nobody scores them, and they take no place of those who are answered. Owns when what is sampled; the prompts are in
evaluation_material, the measures in evaluations.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from online_sao.config import EvaluationSettings
from online_sao.errors import EngineError, StorageError
from online_sao.inference.engine import EngineRequest, InferenceEngine
from online_sao.inference.renderer import Renderer
from online_sao.service.evaluation_material import CHECK_PROMPTS, PROMPTS, TEXT
from online_sao.service.evaluations import distinct_2, perplexity
from online_sao.storable import storable
from online_sao.storage.repositories import evaluations, probes
from online_sao.storage.session import Database
from online_sao.storage.tables import EvaluationRow, ProbeRow

logger = logging.getLogger(__name__)

PROBE_TOKENS = 32
"""Longest answer to a fixed prompt."""
ROOM_POLL_SECONDS = 0.5
SEED = 20
"""The same draws for every version, as far as the engine can: what differs between two versions' answers is then less often chance."""
RETRY_SECONDS = 30.0
"""After a failure that is not a swap."""


class _ReplacedError(Exception):
    """Another version serves now; what was being sampled is of no use."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    prompt: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    text: str


class Prober:
    """``run`` beside everything else; ``version_changed`` after every swap and every start of the engine. ``evaluates``: whether this process is the
    one that evaluates; all of them sample probes."""

    def __init__(
        self,
        database: Database,
        engine: InferenceEngine,
        renderer: Renderer,
        settings: EvaluationSettings,
        evaluates: Callable[[], bool] = lambda: True,
    ) -> None:
        self._database = database
        self._engine = engine
        self._renderer = renderer
        self._settings = settings
        self._evaluates = evaluates
        self._changed = asyncio.Event()
        self._next_evaluation = 0.0

    def version_changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Never ends by itself. The version that serves when it begins is sampled too."""
        while True:
            self._changed.clear()
            version, again = self._engine.policy_version, None
            try:
                await self.examine(version)
            except _ReplacedError:
                logger.info("probes of version %d given up: it was replaced while they were sampled", version)
                continue
            except (EngineError, StorageError) as error:
                logger.warning("probes of version %d could not be sampled: %s", version, error.message)
                again = RETRY_SECONDS
            except Exception:
                logger.exception("probes of version %d could not be sampled", version)
                again = RETRY_SECONDS
            try:
                await asyncio.wait_for(self._changed.wait(), timeout=again)
            except TimeoutError:
                continue

    async def examine(self, version: int) -> None:
        """The probes of ``version``, which must serve now, and its evaluation if it has none yet."""
        checks = await self._sample_all(CHECK_PROMPTS, version)
        now = time.time()
        rows = [
            ProbeRow(
                policy_version=version,
                prompt=sampled.prompt,
                prompt_ids=list(sampled.prompt_ids),
                token_ids=list(sampled.token_ids),
                behavior_logprobs=list(sampled.behavior_logprobs),
                text=sampled.text,
                tolerance=self._engine.logprob_tolerance,
                created_at=now,
            )
            for sampled in checks
        ]
        async with self._database.write() as session:
            await probes.insert(session, rows)
        async with self._database.read() as session:
            known = await evaluations.get(session, version)
        if self._settings.enabled and known is None and self._evaluates():
            await self._evaluate(version, checks)

    async def _evaluate(self, version: int, checks: Sequence[_Sampled]) -> None:
        # The base is what all later versions are compared with, and serves only until the first update: it does not wait.
        if version > 0:
            await self._wait_for_room(version)
        started = time.monotonic()
        others = await self._sample_all([prompt for prompt in PROMPTS if prompt not in CHECK_PROMPTS], version)
        text_ids = self._renderer.encode_text(TEXT)
        logprobs = await self._engine.score_text(text_ids)
        self._require(version)
        row = EvaluationRow(
            policy_version=version,
            perplexity=perplexity(logprobs),
            perplexity_tokens=len(logprobs),
            samples=[
                {"prompt": item.prompt, "text": item.text, "tokens": len(item.token_ids), "distinct_2": distinct_2([item.text])}
                for item in (*checks, *others)
            ],
            created_at=time.time(),
        )
        async with self._database.write() as session:
            await evaluations.put(session, row)
        self._next_evaluation = time.monotonic() + self._settings.min_interval_seconds
        logger.info("version %d evaluated in %.1f s: perplexity %s", version, time.monotonic() - started, row.perplexity and round(row.perplexity, 2))

    async def _wait_for_room(self, version: int) -> None:
        """Until the interval is over and nobody waits for a place in the engine."""
        while time.monotonic() < self._next_evaluation or self._engine.load().waiting > 0:
            self._require(version)
            await asyncio.sleep(ROOM_POLL_SECONDS)

    def _require(self, version: int) -> None:
        if self._engine.policy_version != version:
            raise _ReplacedError

    async def _sample_all(self, prompts: Sequence[str], version: int) -> list[_Sampled]:
        """Together: a batch costs the engine far less than one after the other. Raises _ReplacedError, or EngineError."""
        tasks = [asyncio.create_task(self._sample(prompt, version)) for prompt in prompts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _sample(self, prompt: str, version: int) -> _Sampled:
        prompt_ids = self._renderer.render([{"role": "user", "content": prompt}])
        request = EngineRequest(
            request_id=f"probe-{uuid.uuid4().hex}",
            prompt_ids=prompt_ids,
            max_tokens=PROBE_TOKENS,
            temperature=1.0,
            top_p=1.0,
            eos_token_ids=self._renderer.eos_token_ids,
            seed=SEED,
            background=True,
        )
        token_ids: list[int] = []
        logprobs: list[float] = []
        async with aclosing(self._engine.generate(request)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                if delta.policy_version != version:
                    raise _ReplacedError
                token_ids += delta.token_ids
                logprobs += delta.behavior_logprobs
        return _Sampled(prompt, prompt_ids, tuple(token_ids), tuple(logprobs), storable(self._renderer.decode(token_ids)))
