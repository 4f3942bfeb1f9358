"""What this service costs its users beside a plain `vllm serve`, and what else is switched on beside it: a learner that shares the cores, a replica
in a process of its own. Pairs of bursts on two servers, alternating. Run with `python -m online_sao.benchmarks.serving`.

Both answer the same prompts through the same client, with the same engine settings. Ours also logs everything: a row before the first byte and a
completed one before the last, each token with its logprob. Ratios are of the pairs, with a 95 % bootstrap interval of their median.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import track
from rich.table import Table

from online_sao.benchmarks.intervals import median_interval
from online_sao.benchmarks.load import Burst, burst, numbered
from online_sao.benchmarks.local_server import LocalProgram, LocalServer
from online_sao.config import EngineSettings, PolicySettings
from online_sao.inference.vllm import launch
from online_sao.models.catalog import obtain
from online_sao.simulation.prompts import TRAINING

console = Console(stderr=True, highlight=False)
RIVALS = {
    "vllm": "a plain `vllm serve`",
    "learner": "the same service with its learner at work",
    "replica": "the same engine in an actor of its own",
    "transformers": "the embedded engine",
}


@dataclass(frozen=True, slots=True)
class Contestant:
    """``before``: what is done before each of its bursts. ``scored``: whether every answer is given a (random) score."""

    name: str
    url: str
    model: str
    before: Callable[[], Awaitable[None]] | None = None
    scored: bool = False


async def compare(
    contestants: Sequence[Contestant], *, pairs: int, users: Sequence[int], rounds: int, max_tokens: int
) -> list[dict[str, list[Burst]]]:
    """[number of users] → name → its bursts, one a pair. Each user asks ``rounds`` times. Who comes first alternates."""
    found: list[dict[str, list[Burst]]] = [{contestant.name: [] for contestant in contestants} for _ in users]
    await _all_bursts(contestants, found, -1, users, 1, max_tokens)  # the first answers of a server pay for what it builds once
    for bursts in found:
        for each in bursts.values():
            each.clear()
    for pair in track(range(pairs), "Pairs", console=console):
        await _all_bursts(contestants[:: 1 if pair % 2 == 0 else -1], found, pair, users, rounds, max_tokens)
    return found


async def _all_bursts(
    contestants: Sequence[Contestant], found: list[dict[str, list[Burst]]], pair: int, users: Sequence[int], rounds: int, max_tokens: int
) -> None:
    # Two servers are asked the same. One that is asked twice would find the second time's prompts in its cache; and as a swap leaves nothing of use
    # there, it would find beginnings of earlier bursts' in some bursts and not in others.
    one = len({contestant.url for contestant in contestants}) == 1
    apart = 500 if one else 0
    for bursts, count in zip(found, users, strict=True):
        for place, contestant in enumerate(contestants):
            prompts = numbered(TRAINING, count * rounds, (pair + 1) * 1000 + place * apart, first=one)
            if contestant.before is not None and pair >= 0:
                await contestant.before()
            bursts[contestant.name].append(await _one_burst(contestant, prompts, count, max_tokens))


async def _one_burst(contestant: Contestant, prompts: Sequence[str], users: int, max_tokens: int) -> Burst:
    async with (
        AsyncOpenAI(base_url=f"{contestant.url}/v1", api_key="none", max_retries=0, timeout=600) as client,
        httpx.AsyncClient(base_url=contestant.url, trust_env=False, timeout=60) as http,
    ):

        async def score(completion_id: str) -> None:
            answer = await http.post("/v1/feedback", json={"completion_id": completion_id, "value": random.random()})
            answer.raise_for_status()

        return await burst(client, contestant.model, prompts, users=users, max_tokens=max_tokens, answered=score if contestant.scored else None)


def summarise(found: Sequence[dict[str, list[Burst]]], users: Sequence[int]) -> list[dict[str, Any]]:
    """For each number of users: each contestant's figures, and the ratio of the first to the second, pair by pair."""
    results = []
    for bursts, count in zip(found, users, strict=True):
        first, second = bursts.values()
        ratios = {
            "throughput": _ratio([a.throughput / b.throughput for a, b in zip(first, second, strict=True)]),
            "ttft_p50": _ratio([_percentile([a], 50) / _percentile([b], 50) for a, b in zip(first, second, strict=True)]),
            "per_token_p50": _ratio([_per_token([a], 50) / _per_token([b], 50) for a, b in zip(first, second, strict=True)]),
        }
        results.append({"users": count, "contestants": {name: _figures(each) for name, each in bursts.items()}, "ratios": ratios})
    return results


def _figures(bursts: Sequence[Burst]) -> dict[str, Any]:
    return {
        "answers": sum(len(each.timings) for each in bursts),
        "throughput": round(statistics.median(each.throughput for each in bursts), 2),
        **{f"ttft_p{q}": round(_percentile(bursts, q), 4) for q in (50, 99)},
        **{f"per_token_p{q}": round(_per_token(bursts, q), 4) for q in (50, 99)},
    }


def _percentile(bursts: Sequence[Burst], q: float) -> float:
    return float(np.percentile([timing.first for each in bursts for timing in each.timings], q))


def _per_token(bursts: Sequence[Burst], q: float) -> float:
    return float(np.percentile([timing.per_token for each in bursts for timing in each.timings if timing.per_token is not None], q))


def _ratio(values: Sequence[float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(median_interval(values)).items() if value is not None}


def vllm_serve(engine: EngineSettings, model_path: Path, folder: Path) -> LocalProgram:
    """`vllm serve` with the arguments that our engine gives vLLM."""
    on_cpu = not torch.cuda.is_available()
    flags = []
    for name, value in launch.engine_arguments(engine, model_path, on_cpu=on_cpu).items():
        flag = f"--{name.replace('_', '-')}"
        flags += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
    # What `vllm serve` starts: the command itself does not find its version in the CPU build.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_path), "--served-model-name", "vllm", *flags]
    environment = launch.environment(engine, on_cpu=on_cpu)
    return LocalProgram([*command, "--host", "127.0.0.1"], folder, environment, ready_path="/health")


class LearnerSwitch:
    """Has the learner of a running service at work, or still, before a burst."""

    WAIT_SECONDS = 600.0

    def __init__(self, url: str) -> None:
        self._url = url

    async def still(self) -> None:
        """Its last update is over, and the engine has loaded what came of it."""
        await self._wait(
            "pause", lambda now: now["learner"]["phase"] == "paused" and now["engine"]["policy_version"] == now["learner"]["head_version"]
        )

    async def at_work(self) -> None:
        await self._wait("resume", lambda now: now["learner"]["phase"] in ("pretraining", "updating", "publishing"))

    async def _wait(self, call: str, reached: Callable[[dict[str, Any]], bool]) -> None:
        async with httpx.AsyncClient(base_url=self._url, trust_env=False, timeout=60) as http:
            (await http.post(f"/admin/learner/{call}", json={})).raise_for_status()
            deadline = time.monotonic() + self.WAIT_SECONDS
            while not reached((await http.get("/admin/status")).raise_for_status().json()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the learner did not {call} within {self.WAIT_SECONDS:.0f} s")
                await asyncio.sleep(0.25)


def _contestants(arguments: argparse.Namespace, stack: ExitStack, scratch: Path) -> list[Contestant]:
    policy = PolicySettings()
    settings = {"engine.kind": arguments.engine, "evaluation.enabled": "false", "policy.model": arguments.model, **dict(arguments.set)}
    learns = arguments.against == "learner"
    ours = stack.enter_context(LocalServer(scratch / "ours", {"learning.enabled": str(learns).lower(), **settings}))
    name = settings.get("policy.name", policy.name)
    if learns:
        switch = LearnerSwitch(ours.url)
        return [
            Contestant("learner at work", ours.url, name, switch.at_work, scored=True),
            Contestant("learner paused", ours.url, name, switch.still, scored=True),
        ]
    if arguments.against == "vllm":
        # The defaults of the settings, or what --set says of them: never those of a settings file that only one of the two would read.
        engine = EngineSettings.model_validate({key.removeprefix("engine."): value for key, value in settings.items() if key.startswith("engine.")})
        rival = stack.enter_context(vllm_serve(engine, obtain(arguments.model, policy.cache_dir), scratch / "vllm"))
        return [Contestant("online-sao", ours.url, name), Contestant("vllm serve", rival.url, "vllm")]
    other = {"replica": {"cluster.replicas": "1"}, "transformers": {"engine.kind": "transformers"}}[arguments.against]
    rival = stack.enter_context(LocalServer(scratch / "other", {"learning.enabled": "false", **settings, **other}))
    return [Contestant(RIVALS[arguments.against], rival.url, name), Contestant("in process", ours.url, name)]


def table(results: Sequence[dict[str, Any]]) -> Table:
    found = Table(title="Medians over pairs; times in milliseconds; ratios of the first to the second: median, 95 % interval")
    for heading in ("users", "server", "tokens/s", "first token p50", "p99", "per token p50", "p99"):
        found.add_column(heading, justify="left" if heading == "server" else "right")
    for result in results:
        for name, figures in result["contestants"].items():
            times = [f"{1000 * figures[key]:.0f}" for key in ("ttft_p50", "ttft_p99", "per_token_p50", "per_token_p99")]
            found.add_row(str(result["users"]), name, f"{figures['throughput']:.1f}", *times)
        shown = {
            key: f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if "low" in r else f"{r['median']:.2f}" for key, r in result["ratios"].items()
        }
        found.add_row("", "ratio", shown["throughput"], shown["ttft_p50"], "", shown["per_token_p50"], "", end_section=True)
    return found


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="serving", description=__doc__)
    parser.add_argument("--against", choices=tuple(RIVALS), default="vllm", help="; ".join(f"{name}: {text}" for name, text in RIVALS.items()))
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="vllm", help="engine of our server")
    parser.add_argument("--model", default="bundled", help="bundled, a folder or a hub id")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4, 16], help="numbers of users at once")
    parser.add_argument("--rounds", type=int, default=3, help="questions of each user in a burst")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of our servers")
    parser.add_argument("--out", type=Path, help="write the figures and every burst here as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The table goes to stderr, the figures as JSON to stdout. Returns the exit status."""
    arguments = _arguments(argv)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        with console.status("Starting the servers"):
            contestants = _contestants(arguments, stack, Path(scratch))
        found = asyncio.run(
            compare(contestants, pairs=arguments.pairs, users=arguments.users, rounds=arguments.rounds, max_tokens=arguments.max_tokens)
        )
    results = summarise(found, arguments.users)
    console.print(table(results))
    given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    report = {"benchmark": "serving", "arguments": given, "results": results}
    if arguments.out is not None:
        every = [{name: [round(each.throughput, 3) for each in bursts] for name, bursts in by_name.items()} for by_name in found]
        arguments.out.write_text(json.dumps({**report, "throughputs": every}, indent=2))
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
