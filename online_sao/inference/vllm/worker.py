"""What runs inside vLLM's worker process: a version's weights put in place, and the fingerprint of what serves. Imported there by its name.

Owns the way from a published adapter to vLLM's fused and packed layers. Knows nothing of requests, versions' numbers or the engine around it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

from online_sao.inference.vllm.architecture import projection_shapes
from online_sao.inference.vllm.launch import SERVICE_PID
from online_sao.models.adapter import merged, read_adapter
from online_sao.models.fingerprint import TOLERANCE, fingerprint_of_products, signs

SIGMAS = 6.0
"""Standard deviations of rounding that a fingerprint may be off by, before it is of other weights."""
BACKEND = "policy_store"
"""The name under which this module's weight transfer is known to vLLM."""


class _OnlyWhatWasAdapted(logging.Filter):
    """vLLM warns of every layer that an update leaves alone. Here that is the rule: embeddings, norms and the output matrix are never adapted."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Failed to load weights" not in record.msg


logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").addFilter(_OnlyWhatWasAdapted())


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on: both sides read files."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """``adapter_dir``: a published version's folder; None: the base model."""

    adapter_dir: str | None


class PolicyStoreTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]
    """W0 + scale · B @ A of every adapted matrix, from the base model's files and the adapter's, through vLLM's own loaders: they fuse, and pack
    again what CPUs read packed. Every matrix that any version may change is written each time, so nothing of the version before is left."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _end_with_the_service()

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class synchronises an accelerator, which a CPU has not.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        folder = Path(self.model_config.model)
        with torch.device(self.device):
            self.model.load_weights(_merged_weights(folder, Path(update_info.adapter_dir) if update_info.adapter_dir else None))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


def _end_with_the_service() -> None:
    """Neither core nor worker notices by itself that the process which started them was killed, nor a worker that its core was: they would keep
    their memory. As for the learner, no event tells: it is looked at."""
    service, core = psutil.Process(int(os.environ[SERVICE_PID])), os.getppid()

    def watch() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while os.getppid() == core and service.is_running() and service.status() != psutil.STATUS_ZOMBIE:
                time.sleep(1.0)
        if os.getppid() == core:
            os.kill(core, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="end with the service", daemon=True).start()


WeightTransferEngineFactory.register_engine(BACKEND, PolicyStoreTransfer)


class WorkerExtension:
    """Mixed into vLLM's worker: what the engine may call there."""

    model_runner: Any
    model_config: Any

    def served_fingerprint(self, lora_id: int | None) -> tuple[tuple[float, ...], float]:
        """models.fingerprint of what serves, and its tolerance, from what the layers themselves read, packed or not. With ``lora_id``: of what
        serves the requests of that adapter, from the slot its matrices lie in."""
        model = self.model_runner.get_model()
        slot = None if lora_id is None else self.model_runner.lora_manager._adapter_manager.lora_index_to_id.index(lora_id)
        noise: list[float] = []
        with torch.inference_mode():
            shapes = projection_shapes(Path(self.model_config.model))
            values = fingerprint_of_products(_products(model, shapes, slot, noise))
        return values, max(TOLERANCE, SIGMAS * max(noise, default=0.0))

    def zero_cache(self) -> None:
        """Zeros for all keys and values. Only where no request counts on them any more."""
        for cache in self.model_runner.kv_caches:
            cache.zero_()


def _merged_weights(folder: Path, adapter_dir: Path | None) -> Iterator[tuple[str, Tensor]]:
    adapter = read_adapter(adapter_dir) if adapter_dir is not None else None
    wanted = set(projection_shapes(folder))
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            # Layer by layer, as vLLM's loaders keep each layer's parts until it is whole.
            for key in sorted(tensors.keys(), key=_natural):
                name = key.removesuffix(".weight")
                if name in wanted:
                    wanted.discard(name)
                    weight = tensors.get_tensor(key)
                    yield key, weight if adapter is None else merged(weight, adapter, name)
    if wanted:
        raise ValueError(f"{folder} holds no weights of {sorted(wanted)[0]}")


def _natural(key: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")]


def _products(model: nn.Module, shapes: Mapping[str, tuple[int, int]], slot: int | None, noise: list[float]) -> Iterator[tuple[str, Tensor]]:
    """(name, W v) of each adapted matrix, in order: v as models.fingerprint draws it from the name. With the adapter in ``slot``, if any. To
    ``noise`` goes the standard deviation that rounding to the layer's number format gives each uᵀ W v; nothing in fp32."""
    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    owners = {part: (whole, place) for whole, parts in fused.items() for place, part in enumerate(parts)}
    for name in sorted(shapes):
        parent, _, part = name.rpartition(".")
        whole, place = owners.get(part, (part, 0))
        layer: Any = model.get_submodule(f"{parent}.{whole}")
        base = getattr(layer, "base_layer", layer)
        sizes = list(getattr(base, "output_sizes", [shapes[name][0]]))
        start = sum(sizes[:place])
        rows = slice(start, start + shapes[name][0])
        reference = next(base.parameters())
        v = signs(f"{name}:v", shapes[name][1]).to(reference.device)
        if reference.dtype == torch.float32:
            product = base.quant_method.apply(base, v.float().unsqueeze(0), None)[0, rows].double()
        else:
            weight = _numbers(base, shapes[name][1], reference)[rows].double()
            product = weight @ v
            if slot is None:
                noise.append(torch.finfo(reference.dtype).eps / 2 / 3**0.5 * float(weight.norm()))
        if slot is not None:
            stored_a, stored_b = layer.lora_a_stacked[place], layer.lora_b_stacked[place]
            a, b = stored_a[slot, 0].double(), stored_b[slot, 0].double()
            product = product + b @ (a @ v)
            if stored_a.dtype != torch.float32:
                noise.append(torch.finfo(stored_a.dtype).eps / 2 / 3**0.5 * float((2 * (b.square().sum(0) @ a.square().sum(1))).sqrt()))
        yield name, product


def _numbers(layer: Any, width: int, reference: Tensor) -> Tensor:
    """W[out, in] as a layer holds it. One that is packed gives it away a column at a time: W times a unit vector is exact in any format."""
    if layer.weight.numel():
        return torch.as_tensor(layer.weight)
    units = torch.eye(width, dtype=reference.dtype, device=reference.device)
    return torch.cat([layer.quant_method.apply(layer, block, None) for block in torch.split(units, 256)]).T
