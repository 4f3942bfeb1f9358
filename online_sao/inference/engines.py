"""Which inference engine the settings name. The only place that knows them all."""

from __future__ import annotations

from pathlib import Path

from online_sao.config import EngineSettings
from online_sao.inference.engine import InferenceEngine
from online_sao.inference.transformers_engine import TransformersEngine


def build_engine(settings: EngineSettings, model_path: Path) -> InferenceEngine:
    """Raises ConfigurationError for settings that the engine cannot work with."""
    if settings.kind == "vllm":
        from online_sao.inference.vllm.engine import VLLMEngine

        return VLLMEngine(settings, model_path)
    return TransformersEngine(settings, model_path)
