"""Which inference engine the settings name. The only place that knows them all."""

from __future__ import annotations

from pathlib import Path

from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError
from online_sao.inference.engine import InferenceEngine
from online_sao.inference.transformers_engine import TransformersEngine


def build_engine(settings: EngineSettings, model_path: Path, lora_rank: int) -> InferenceEngine:
    """``lora_rank``: that of the adapters it is to serve. Raises ConfigurationError for settings that the engine cannot work with."""
    if settings.kind == "vllm":
        from online_sao.inference.vllm.engine import VLLMEngine

        return VLLMEngine(settings, model_path, lora_rank)
    if settings.publish == "adapter":
        raise ConfigurationError("engine.publish is 'adapter', which engine.kind 'transformers' cannot do: it has one set of weights. Use 'auto'.")
    if settings.dtype == "bfloat16":
        raise ConfigurationError("engine.dtype is 'bfloat16', which engine.kind 'transformers' does not serve. Use 'auto', or engine.kind 'vllm'.")
    return TransformersEngine(settings, model_path)
