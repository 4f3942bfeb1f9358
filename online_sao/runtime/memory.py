"""How this process's allocator treats memory that is freed. Owns one setting of the C library; knows nothing of what uses the memory."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = 2**30


def keep_freed_memory() -> bool:
    """Have blocks below 1 GB come from the heap, and the heap keep what is freed, for the rest of this process. False where the C library has no such
    setting (only glibc has).

    Left alone, glibc gives large blocks back to the kernel as soon as they are free, and every page of the next one is a fault: a learner frees and
    asks for the same tens of megabytes hundreds of times an update. The process then stays as large as it once was.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _NEVER)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
