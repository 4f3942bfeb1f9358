"""What runs inside vLLM's worker process: a version's weights put in place, and the fingerprint of what serves. Imported there by its name.

Owns the way from a published adapter to vLLM's fused and packed layers. Knows nothing of requests, versions' numbers or the engine around it.
"""

from __future__ import annotations

import contextlib
import itertools
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

from online_sao.inference.vllm.architecture import projection_shapes
from online_sao.inference.vllm.launch import SERVICE_PID
from online_sao.models.adapter import Adapter, merged, read_adapter
from online_sao.models.fingerprint import TOLERANCE, fingerprint_of_products, signs

SIGMAS = 6.0
"""Standard deviations of rounding that a fingerprint may be off by, before it is of other weights."""
BACKEND = "policy_store"
"""The name under which this module's weight transfer is known to vLLM."""


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on: both sides read files."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """``adapter_dir``: a published version's folder; None: the base model."""

    adapter_dir: str | None


class PolicyStoreTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]
    """W0 + scale · B @ A of every adapted matrix, from the base model's files and the adapter's, into the fused layers that hold them; what CPUs read
    packed is packed again. Every matrix that any version may change is written each time, so nothing of the version before is left. vLLM's own
    reload would do it too, in three to four times the time: it loads each matrix into a layer built anew, and copies that."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _end_with_the_service()

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        pass

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class synchronises an accelerator, which a CPU has not.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        folder = Path(self.model_config.model)
        adapter = read_adapter(Path(update_info.adapter_dir)) if update_info.adapter_dir else None
        base = BaseWeights(folder)
        with torch.inference_mode():
            for layer, parts in fused_layers(self.model, projection_shapes(folder)):
                _put_in_place(layer, _fused(base, adapter, parts, self.device))

    def finish_weight_update(self) -> None:
        pass

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
        folder = Path(self.model_config.model)
        slot = None if lora_id is None else self.model_runner.lora_manager._adapter_manager.lora_index_to_id.index(lora_id)
        # In fp32 no weight is rounded. Else: merged weights are, and those beside an adapter unless their files hold them as they are served.
        rounded = self.model_config.dtype != torch.float32 and (slot is None or BaseWeights(folder).dtype != self.model_config.dtype)
        noise: list[float] = []
        with torch.inference_mode():
            values = fingerprint_of_products(_products(self.model_runner.get_model(), projection_shapes(folder), slot, rounded, noise))
        return values, max(TOLERANCE, SIGMAS * max(noise, default=0.0))

    def zero_cache(self) -> None:
        """Zeros for all keys and values. Only where no request counts on them any more."""
        for cache in self.model_runner.kv_caches:
            cache.zero_()


class BaseWeights:
    """The base model's matrices by module path, from its files as they lie there: nothing is read before it is asked for."""

    def __init__(self, folder: Path) -> None:
        files: list[Any] = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
        self._holders = {key: file for file in files for key in file.keys()}  # noqa: SIM118 (no mapping)

    @property
    def dtype(self) -> torch.dtype:
        """The finest that any of them is kept in."""
        kept = {str(file.get_slice(key).get_dtype()) for key, file in self._holders.items()}
        return torch.float32 if "F32" in kept or len(kept) > 1 else torch.bfloat16 if kept == {"BF16"} else torch.float16

    def __getitem__(self, name: str) -> Tensor:
        weight: Tensor = self._holders[f"{name}.weight"].get_tensor(f"{name}.weight")
        return weight


def fused_layers(model: nn.Module, shapes: Mapping[str, tuple[int, int]]) -> Iterator[tuple[Any, dict[str, slice]]]:
    """(vLLM's layer, module path → the rows of its weight that are this matrix) of all adapted matrices, as vLLM fuses them. Raises ValueError where
    a layer holds anything beside them, which would be lost."""
    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    owners = {part: (whole, place) for whole, parts in fused.items() for place, part in enumerate(parts)}
    layers: dict[str, dict[int, str]] = {}
    for name in shapes:
        parent, _, part = name.rpartition(".")
        whole, place = owners.get(part, (part, 0))
        layers.setdefault(f"{parent}.{whole}", {})[place] = name
    for path, parts in layers.items():
        layer: Any = model.get_submodule(path)
        base = getattr(layer, "base_layer", layer)
        names = [parts[place] for place in sorted(parts)]
        ends = list(itertools.accumulate(shapes[name][0] for name in names))
        if ends[-1] != sum(getattr(base, "output_partition_sizes", ends[-1:])):
            raise ValueError(f"{path} holds more than the matrices that adapters change")
        yield layer, {name: slice(end - shapes[name][0], end) for name, end in zip(names, ends, strict=True)}


def _fused(base: BaseWeights, adapter: Adapter | None, parts: Mapping[str, slice], device: torch.device) -> Tensor:
    """The matrices of a layer under ``adapter``, one below the other. Merged in fp32, whatever they are served in: rounded once."""
    fused: Tensor | None = None
    for name, rows in parts.items():
        weight = base[name].to(device, torch.float32)
        if fused is None:
            fused = weight.new_empty(max(rows.stop for rows in parts.values()), weight.shape[1])
        if adapter is None:
            fused[rows] = weight
        else:
            merged(weight, adapter, name, out=fused[rows])
    assert fused is not None
    return fused


def _put_in_place(layer: Any, weight: Tensor) -> None:
    """In its number format, and in the form it reads."""
    if layer.weight.numel():
        layer.weight.copy_(weight)  # captured graphs hold its address
    else:
        layer.weight = nn.Parameter(weight.to(layer.weight.dtype), requires_grad=False)
        layer.quant_method.process_weights_after_loading(layer)


def _products(
    model: nn.Module, shapes: Mapping[str, tuple[int, int]], slot: int | None, rounded: bool, noise: list[float]
) -> Iterator[tuple[str, Tensor]]:
    """(name, W v) of each adapted matrix, sorted by name: v as models.fingerprint draws it from the name. With the adapter in ``slot``, if any. To
    ``noise`` goes the standard deviation that arithmetic gives each uᵀ W v: of summing in fp32, else of the layer's number format if it was
    ``rounded`` to that, and of the adapter's."""
    places = {name: (layer, place, rows) for layer, parts in fused_layers(model, shapes) for place, (name, rows) in enumerate(parts.items())}
    for name in sorted(shapes):
        layer, place, rows = places[name]
        base = getattr(layer, "base_layer", layer)
        reference = next(base.parameters())
        v = signs(f"{name}:v", shapes[name][1]).to(reference.device)
        variance = 0.0
        if reference.dtype == torch.float32:
            product = base.quant_method.apply(base, v.float().unsqueeze(0), None)[0, rows].double()
            variance += _summing(len(v)) * float(product.square().sum())
        else:
            weight = _numbers(base, shapes[name][1], reference)[rows].double()
            product = weight @ v
            variance += rounded * _rounding(reference.dtype) * float(weight.square().sum())
        if slot is not None:
            stored_a, stored_b = layer.lora_a_stacked[place], layer.lora_b_stacked[place]
            a, b = stored_a[slot, 0].double(), stored_b[slot, 0].double()
            product = product + b @ (a @ v)
            variance += 2 * _rounding(stored_a.dtype) * float(b.square().sum(0) @ a.square().sum(1))
        noise.append(variance**0.5)
        yield name, product


def _summing(terms: int) -> float:
    """Variance that rounding gives a sum of so many terms in fp32, as a fraction of its square: each step rounds what has come together so far,
    half of it on average. Sums in blocks do better. For random signs v the sum of squares of W v is that of W: the layer need not be read."""
    return (torch.finfo(torch.float32).eps / 2) ** 2 / 3 * terms / 2


def _rounding(dtype: torch.dtype) -> float:
    """Largest variance that rounding to ``dtype`` gives a number, as a fraction of its square; that of fp32 counts as none."""
    return 0.0 if dtype == torch.float32 else (torch.finfo(dtype).eps / 2) ** 2 / 3


def _numbers(layer: Any, width: int, reference: Tensor) -> Tensor:
    """W[out, in] as a layer holds it. One that is packed gives it away a column at a time: W times a unit vector is exact in any format."""
    if layer.weight.numel():
        return torch.as_tensor(layer.weight)
    units = torch.eye(width, dtype=reference.dtype, device=reference.device)
    return torch.cat([layer.quant_method.apply(layer, block, None) for block in torch.split(units, 256)]).T
