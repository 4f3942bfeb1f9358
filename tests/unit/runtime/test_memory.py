"""Freed memory that is kept costs no page faults when it is asked for again."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy
from online_sao.runtime.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def use():
    blocks = [numpy.ones(3_000_000) for _ in range(3)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_freed_memory_is_not_faulted_in_again():
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout) for how in ("keep", "-")
    )
    # 24 MB a block: about 5900 pages, fewer where the kernel has larger ones.
    assert kept < given_back / 10
