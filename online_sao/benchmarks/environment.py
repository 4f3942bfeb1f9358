"""Where figures were measured: what they depend on beside the settings of a benchmark."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any


def environment() -> dict[str, Any]:
    packages = ("online-sao", "torch", "transformers", "peft")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_at_end": os.getloadavg()[0],
        **{name: importlib.metadata.version(name) for name in packages},
    }
