"""A benchmark's own server: gone when the benchmark is, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

# Both react to Ctrl-C, as the real ones do, also where the tests run in the background of a shell, whose children ignore it.
SERVER = """
import http.server, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
BENCHMARK = """
import asyncio, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from online_sao.benchmarks.local_server import LocalProgram

async def measure():
    print("measuring", flush=True)
    await asyncio.sleep(60)

with LocalProgram([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), {}, ready_path="/"):
    asyncio.run(measure())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_told_to_end_takes_its_server_along(tmp_path: Path, number: signal.Signals) -> None:
    benchmark = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BENCHMARK), SERVER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert benchmark.stdout is not None
    with benchmark, benchmark.stdout:
        assert benchmark.stdout.readline() == "measuring\n"
        servers = psutil.Process(benchmark.pid).children()
        assert len(servers) == 1
        benchmark.send_signal(number)
        assert benchmark.wait(30) != 0
    assert psutil.wait_procs(servers, timeout=5)[1] == []
