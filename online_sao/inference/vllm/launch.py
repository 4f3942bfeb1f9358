"""Starts vLLM's engine core with what this service needs of it, and ends it. Owns the engine's arguments and the environment of its process; knows
nothing of requests or versions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig

from online_sao import logs
from online_sao.config import EngineSettings
from online_sao.inference.requests import MAX_TOP_LOGPROBS

BLOCK_TOKENS = 32
"""Tokens in one block of the KV cache: the smallest that attention on a CPU takes."""
WORKER = "online_sao.inference.vllm.worker"
SERVICE_PID = "SAO_VLLM_SERVICE_PID"
"""The environment variable that names this process to vLLM's, which end when it does."""


@dataclass(frozen=True, slots=True)
class Started:
    """``llm``: an AsyncLLM. ``processes``: its core and the core's workers."""

    llm: Any
    processes: tuple[psutil.Process, ...]


def start(settings: EngineSettings, model_path: Path) -> Started:
    """vLLM serving the base model: blocks for about half a minute. Not on an event loop: it takes up the first one that uses it."""
    others = _processes()
    try:
        llm = _start(settings, model_path)
    except BaseException:
        _end(_processes() - others)
        raise
    return Started(llm, tuple(_processes() - others))


def _start(settings: EngineSettings, model_path: Path) -> Any:
    on_cpu = not torch.cuda.is_available()
    config = AutoConfig.from_pretrained(model_path, local_files_only=True).get_text_config()
    with _environment(settings, on_cpu):
        # Imported here: it takes 15 s, reads the environment, and needs what only its users install.
        from vllm import AsyncEngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.v1.engine.async_llm import AsyncLLM

        from online_sao.inference.vllm.worker import BACKEND

        arguments = AsyncEngineArgs(
            model=str(model_path),
            skip_tokenizer_init=True,
            dtype="float32" if on_cpu else "auto",
            generation_config="vllm",
            seed=int.from_bytes(os.urandom(4)),
            # One more where the model has it: scoring a text samples a token after it, which is thrown away.
            max_model_len=min(settings.max_context_tokens + 1, config.max_position_embeddings),
            max_num_seqs=settings.max_concurrent,
            max_num_batched_tokens=settings.max_batch_tokens,
            block_size=BLOCK_TOKENS,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            max_logprobs=MAX_TOP_LOGPROBS,
            # Compiling took three minutes here and won nothing.
            enforce_eager=on_cpu,
            worker_extension_cls=f"{WORKER}.WorkerExtension",
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            disable_log_stats=False,  # its metrics, in prometheus_client's default registry; a line of text every ten seconds only from INFO up
            **(_cpu_cache(settings, config) if on_cpu else {}),
        )
        return AsyncLLM.from_engine_args(arguments)


def _cpu_cache(settings: EngineSettings, config: Any) -> dict[str, Any]:
    """Said outright: left to itself, vLLM takes 90 % of the machine's memory and warms the model up to find out."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * kv_heads * head * 4
    return {"kv_cache_memory_bytes": (settings.kv_cache_tokens + BLOCK_TOKENS) * token_bytes}


@contextmanager
def _environment(settings: EngineSettings, on_cpu: bool) -> Iterator[None]:
    """For the engine core alone, which copies it when it starts: the learner, started later, must not inherit the engine's threads."""
    wanted = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads, which a fork would leave half alive
        "VLLM_NO_USAGE_STATS": "1",
        SERVICE_PID: str(os.getpid()),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    if logs.is_json():
        wanted["VLLM_CONFIGURE_LOGGING"] = "0"  # what it says in this process goes the way of all lines
    if on_cpu:
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        wanted["OMP_NUM_THREADS"] = str(settings.threads or os.cpu_count() or 1)
        wanted["OMP_WAIT_POLICY"] = "PASSIVE"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def sampling_params(**parameters: Any) -> Any:
    """vLLM's SamplingParams for token ids alone: deltas, no text, an end only where the request names one."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(detokenize=False, ignore_eos=True, flat_logprobs=True, output_kind=RequestOutputKind.DELTA, **parameters)


def stop(started: Started, seconds: float) -> None:
    """Ends the core's processes, by force after ``seconds``. Blocks."""
    started.llm.shutdown(timeout=seconds)
    # The workers of a core that was killed do not always notice.
    _end(started.processes)


def _end(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _processes() -> set[psutil.Process]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name().startswith("VLLM"):
                found.add(child)
    return found
