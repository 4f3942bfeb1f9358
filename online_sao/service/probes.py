"""Probe completions: after every swap the serving side samples fixed prompts at T=1 through the engine and stores ids and logprobs, for the
learner to compare with its own (docs/design.md §7.7). Owns the prompts. They are no interactions: nobody scores them.
"""

from __future__ import annotations

import logging
import time
import uuid

from online_sao.inference.engine import EngineRequest, InferenceEngine
from online_sao.inference.renderer import Renderer
from online_sao.storage.repositories import probes
from online_sao.storage.session import Database
from online_sao.storage.tables import ProbeRow

logger = logging.getLogger(__name__)

PROMPTS = ("What did you do this morning?", "Name three things one finds in a kitchen.")
PROBE_TOKENS = 16


class Prober:
    def __init__(self, database: Database, engine: InferenceEngine, renderer: Renderer) -> None:
        self._database = database
        self._engine = engine
        self._renderer = renderer

    async def sample(self) -> bool:
        """Sample and store the probes of the version that serves now. False, and nothing stored, if another took its place meanwhile (which has
        probes of its own). Raises EngineError."""
        version = self._engine.policy_version
        rows = [await self._probe(prompt, version) for prompt in PROMPTS]
        complete = [row for row in rows if row is not None]
        if len(complete) < len(rows):
            logger.info("probes of version %d given up: it was replaced while they were sampled", version)
            return False
        async with self._database.write() as session:
            await probes.insert(session, complete)
        return True

    async def _probe(self, prompt: str, version: int) -> ProbeRow | None:
        prompt_ids = self._renderer.render([{"role": "user", "content": prompt}])
        request = EngineRequest(
            request_id=f"probe-{uuid.uuid4().hex}",
            prompt_ids=prompt_ids,
            max_tokens=PROBE_TOKENS,
            temperature=1.0,
            top_p=1.0,
            eos_token_ids=self._renderer.eos_token_ids,
        )
        token_ids: list[int] = []
        logprobs: list[float] = []
        versions: set[int] = set()
        async for delta in self._engine.generate(request):
            token_ids += delta.token_ids
            logprobs += delta.behavior_logprobs
            if delta.token_ids:
                versions.add(delta.policy_version)
        if versions != {version}:
            return None
        return ProbeRow(
            policy_version=version,
            prompt=prompt,
            prompt_ids=list(prompt_ids),
            token_ids=token_ids,
            behavior_logprobs=logprobs,
            text=self._renderer.decode(token_ids),
            created_at=time.time(),
        )
