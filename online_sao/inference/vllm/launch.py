"""Starts vLLM's engine core with what this service needs of it, and ends it. Owns the engine's arguments and the environment of its process; knows
nothing of requests or versions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import psutil
import torch
from transformers import AutoConfig

from online_sao import logs
from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError
from online_sao.inference.requests import MAX_TOP_LOGPROBS
from online_sao.inference.slots import BACKGROUND_PLACES
from online_sao.inference.vllm.architecture import projection_shapes

BLOCK_TOKENS = 32
"""Tokens in one block of the KV cache: the smallest that attention on a CPU takes."""
WORKER = "online_sao.inference.vllm.worker"
END_SECONDS = 2.0
"""Longest wait for killed processes to be gone."""
SERVICE_PID = "SAO_VLLM_SERVICE_PID"
"""The environment variable that names this process to vLLM's, which end when it does."""


@dataclass(frozen=True, slots=True)
class Started:
    """``llm``: an AsyncLLM. ``processes``: its core and the core's workers."""

    llm: Any
    processes: tuple[psutil.Process, ...]


def start(settings: EngineSettings, model_path: Path, lora_rank: int | None) -> Started:
    """vLLM serving the base model: blocks for about half a minute. Not on an event loop: it takes up the first one that uses it. ``lora_rank``: that
    of adapters to be served beside it; None: none are."""
    others = _processes()
    try:
        llm = _start(settings, model_path, lora_rank)
    except BaseException:
        _end(_processes() - others)
        raise
    return Started(llm, tuple(_processes() - others))


def _start(settings: EngineSettings, model_path: Path, lora_rank: int | None) -> Any:
    on_cpu = not torch.cuda.is_available()
    with _environment(settings, on_cpu):
        # Imported here: it takes 15 s, reads the environment, and needs what only its users install.
        from vllm import AsyncEngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.v1.engine.async_llm import AsyncLLM

        from online_sao.inference.vllm.worker import BACKEND

        arguments = AsyncEngineArgs(
            model=str(model_path),
            skip_tokenizer_init=True,
            seed=int.from_bytes(os.urandom(4)),
            worker_extension_cls=f"{WORKER}.WorkerExtension",
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            disable_log_stats=False,  # its metrics, in prometheus_client's default registry; a line of text every ten seconds only from INFO up
            **engine_arguments(settings, model_path, on_cpu=on_cpu),
            **(_adapters(settings, model_path, lora_rank) if lora_rank is not None else {}),
        )
        return AsyncLLM.from_engine_args(arguments)


def engine_arguments(settings: EngineSettings, model_path: Path, *, on_cpu: bool) -> dict[str, Any]:
    """What decides how fast vLLM serves and what of, by vLLM's own names: also those of its command line."""
    config = AutoConfig.from_pretrained(model_path, local_files_only=True).get_text_config()
    return {
        "dtype": "float32" if settings.dtype == "auto" and on_cpu else settings.dtype,
        "generation_config": "vllm",
        # One more where the model has it: scoring a text samples a token after it, which is thrown away.
        "max_model_len": min(settings.max_context_tokens + 1, config.max_position_embeddings),
        "max_num_seqs": settings.max_concurrent + BACKGROUND_PLACES,
        "max_num_batched_tokens": settings.max_batch_tokens,
        "block_size": BLOCK_TOKENS,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": MAX_TOP_LOGPROBS,
        # Compiling took three minutes here and won nothing.
        "enforce_eager": on_cpu,
        **({"kv_cache_memory_bytes": _cpu_cache_bytes(settings, config)} if on_cpu else {}),
    }


def _cpu_cache_bytes(settings: EngineSettings, config: Any) -> int:
    """Said outright: left to itself, vLLM takes 90 % of the machine's memory and warms the model up to find out."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * kv_heads * head * 4
    return int((settings.kv_cache_tokens + BLOCK_TOKENS) * token_bytes)


def _adapters(settings: EngineSettings, model_path: Path, rank: int) -> dict[str, Any]:
    """One slot more than is ever used: with all of them taken, requests for the base model beside them get wrong logprobs. Only the matrices that
    adapters change are made ready for them: with the output matrix among them, scoring a text ends the core."""
    from vllm.config.lora import MaxLoRARanks

    fitting = [size for size in get_args(MaxLoRARanks) if size >= rank]
    if not fitting:
        raise ConfigurationError(f"policy.lora_rank is {rank}; vLLM serves adapters of rank {max(get_args(MaxLoRARanks))} at most.")
    slots = settings.adapter_slots + 1
    targets = sorted({name.rpartition(".")[2] for name in projection_shapes(model_path)})
    return {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": min(fitting), "lora_target_modules": targets}


def environment(settings: EngineSettings, *, on_cpu: bool) -> dict[str, str]:
    """Of vLLM's processes."""
    wanted = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads, which a fork would leave half alive
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    if logs.is_json():
        wanted["VLLM_CONFIGURE_LOGGING"] = "0"  # what it says in this process goes the way of all lines
    if on_cpu:
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        wanted["OMP_NUM_THREADS"] = str(settings.threads or os.cpu_count() or 1)
        wanted["OMP_WAIT_POLICY"] = "PASSIVE"
    return wanted


@contextmanager
def _environment(settings: EngineSettings, on_cpu: bool) -> Iterator[None]:
    """For the engine core alone, which copies it when it starts: the learner, started later, must not inherit the engine's threads."""
    wanted = {**environment(settings, on_cpu=on_cpu), SERVICE_PID: str(os.getpid())}
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


def lora_request(number: int, version: int, adapter_dir: Path) -> Any:
    """vLLM's LoRARequest. ``number``: of this adapter alone for as long as the core lives, since vLLM goes by it and by the name."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"v{version}.{number}", number, str(adapter_dir))


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


def _end(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # One whose parent is another process shows no end but that it is gone.
    psutil.wait_procs(processes, timeout=END_SECONDS)


def _processes() -> set[psutil.Process]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name().startswith("VLLM"):
                found.add(child)
    return found
