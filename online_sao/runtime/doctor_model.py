"""The doctor's checks of the model: can it be had, does it fit into memory, and does the engine sample from what the model computes.

The last is the self-check of docs/design.md §7.7 without a learner: a probe sampled by the engine, and one plain forward pass over it.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import psutil
import torch

from online_sao.config import Settings
from online_sao.inference.engine import EngineRequest
from online_sao.inference.engines import build_engine
from online_sao.inference.renderer import Renderer
from online_sao.models import catalog
from online_sao.models.adapter import MergedWeights, read_adapter
from online_sao.runtime.doctor import Check
from online_sao.storage.repositories import policies
from online_sao.storage.session import Database, sqlite_path

PROBE = "What did you do this morning?"
PROBE_TOKENS = 24
ENGINE_COPIES, LEARNER_COPIES = 2.0, 2.0
"""Memory of a process in sizes of the fp32 model: the engine keeps the pristine matrices beside the served ones; the learner holds the model,
gradients and optimisers of two adapters, and activations."""
PROCESS_BYTES = 600e6
"""Interpreter and libraries of one process."""


def model(settings: Settings) -> Check:
    """Obtains it: the bundled one is converted on the first call, a hub id is downloaded."""
    path = _path(settings)
    Renderer.from_model(path)
    digest = catalog.base_digest(path)
    return Check("model", "ok", f"{settings.policy.model} in {path} ({digest[:12]}…), with a chat template that keeps what users type apart")


def memory(settings: Settings) -> Check:
    size = sum(file.stat().st_size for file in _path(settings).glob("*.safetensors"))
    need = PROCESS_BYTES + ENGINE_COPIES * size
    if settings.learning.enabled:
        need += PROCESS_BYTES + LEARNER_COPIES * size
    machine = psutil.virtual_memory()
    there = f"{machine.available / 1e9:.1f} of {machine.total / 1e9:.1f} GB available"
    found = f"about {need / 1e9:.1f} GB needed for a model of {size / 1e9:.2f} GB; {there}"
    if need > machine.total:
        return Check("memory", "fail", found, "Choose a smaller model with policy.model, or a machine with more memory.")
    if need > machine.available:
        return Check("memory", "warn", found, "Fine if the service itself is what runs now; else end other programs first.")
    return Check("memory", "ok", found)


async def self_check(settings: Settings) -> Check:
    """Loads the model twice, and takes from seconds to a minute."""
    path = _path(settings)
    version, folder = await _active(settings)
    renderer = await asyncio.to_thread(Renderer.from_model, path)
    prompt = renderer.render([{"role": "user", "content": PROBE}])
    engine = build_engine(settings.engine, path, settings.policy.lora_rank)
    token_ids: list[int] = []
    sampled: list[float] = []
    await engine.start(version, folder)
    bound = engine.logprob_tolerance
    try:
        async for delta in engine.generate(EngineRequest("doctor", prompt, PROBE_TOKENS, 1.0, 1.0, renderer.eos_token_ids)):
            token_ids += delta.token_ids
            sampled += delta.behavior_logprobs
    finally:
        await engine.stop()
    plain = await asyncio.to_thread(_plain_logprobs, path, folder, prompt, token_ids)
    difference = math.fsum(abs(a - b) for a, b in zip(plain, sampled, strict=True)) / len(token_ids)
    found = f"version {version}: mean |engine − model| logprob {difference:.1e} over {len(token_ids)} tokens (bound {bound})"
    if difference <= bound:
        return Check("self-check", "ok", found)
    return Check("self-check", "fail", found, "The engine does not sample from this model: install the versions of constraints.txt.")


@torch.inference_mode()
def _plain_logprobs(path: Path, adapter: Path | None, prompt: tuple[int, ...], token_ids: list[int]) -> list[float]:
    model = catalog.load_model(path)
    MergedWeights(model).apply(read_adapter(adapter) if adapter is not None else None)
    logits = model(torch.tensor([[*prompt, *token_ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen: list[float] = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(token_ids).unsqueeze(-1)).squeeze(-1).tolist()
    return chosen


async def _active(settings: Settings) -> tuple[int, Path | None]:
    """The version that serves and its folder; the base where there is no database yet."""
    path = sqlite_path(settings.database_url)
    if path is not None and not path.exists():
        return 0, None
    connection = Database(settings.database_url)
    try:
        async with connection.read() as session:
            row = await policies.active(session)
    finally:
        await connection.dispose()
    return row.version, settings.policy_store_dir / row.path if row.path is not None else None


def _path(settings: Settings) -> Path:
    return catalog.obtain(settings.policy.model, settings.policy.cache_dir)
