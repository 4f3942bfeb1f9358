"""What benchmarks of computation in this process share: spread of repetitions, where the time goes, memory, and what the figures depend on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from online_sao.benchmarks.environment import environment as versions

_KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::linear", "mkldnn"),
    "attention": ("aten::_scaled_dot_product", "aten::scaled_dot_product", "aten::_flash_attention"),
    "optimiser": ("aten::_fused_adam", "Optimizer", "aten::linalg_vector_norm", "aten::_foreach"),
    "copies": ("aten::copy_", "aten::cat", "aten::clone", "aten::index", "aten::embedding", "aten::fill_", "aten::zero_", "aten::_to_copy"),
}


def environment() -> dict[str, Any]:
    return {**versions(), "threads": torch.get_num_threads()}


def measured(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "runs": len(values)}


@contextlib.contextmanager
def time_by_kind(*, all_threads: bool = False) -> Iterator[dict[str, float]]:
    """Filled at the end: the shares of operator time inside (of each without the operators it calls) by kind; ``elementwise`` is all that has no name
    here. ``all_threads``: also of threads that run already."""
    shares: dict[str, float] = dict.fromkeys((*_KINDS, "elementwise"), 0.0)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=_ExperimentalConfig(profile_all_threads=all_threads)) as found:
        yield shares
    for event in found.key_averages():
        shares[_kind(event.key)] += event.self_cpu_time_total
    total = sum(shares.values())
    shares.update({kind: seconds / total for kind, seconds in shares.items()})


def _kind(operator: str) -> str:
    return next((kind for kind, names in _KINDS.items() if operator.startswith(names)), "elementwise")


def peak_memory(step: Callable[[], object]) -> dict[str, int] | None:
    """Bytes resident before the step, and the most it needed beyond that. None where the system does not say (Linux does)."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not status.exists() or not os.access(reset, os.W_OK):
        return None
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what earlier steps have freed and the process keeps is none of this one's
    reset.write_text("5")  # the high-water mark begins anew
    before = _status(status, "VmRSS")
    step()
    return {"before": before, "more": _status(status, "VmHWM") - before}


def _status(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
