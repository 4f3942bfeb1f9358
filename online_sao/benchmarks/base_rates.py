"""How often the model that has learned nothing already pleases each simulated preference: the base rates in simulation/preferences.py.

Samples the bundled (or another) model at temperature 1 on the training prompts, in this process; nothing of HTTP, database or learner takes part.
Run with `python -m online_sao.benchmarks.base_rates`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import asyncio
import json
import statistics
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from online_sao.config import EngineSettings, PolicySettings
from online_sao.inference.decoding import StreamDecoder
from online_sao.inference.engine import EngineRequest
from online_sao.inference.renderer import Renderer
from online_sao.inference.transformers_engine import TransformersEngine
from online_sao.models.catalog import obtain
from online_sao.simulation.preferences import EXCLUSIVE_PAIRS, PREFERENCES, SCALES, preference
from online_sao.simulation.prompts import training_prompt


async def sample_texts(model_path: Path, prompts: Sequence[str], *, max_tokens: int, threads: int, seed: int, in_flight: int = 8) -> list[str]:
    """One answer to each prompt, at temperature 1, in the prompts' order."""
    import torch

    engine = TransformersEngine(EngineSettings(threads=threads), model_path)
    renderer = Renderer.from_model(model_path)
    await engine.start(0, None)
    torch.manual_seed(seed)

    async def answer(number: int, prompt: str) -> str:
        prompt_ids = renderer.render([{"role": "user", "content": prompt}])
        decoder = StreamDecoder(renderer, ())
        async with aclosing(engine.generate(EngineRequest(f"base-{number}", prompt_ids, max_tokens, 1.0, 1.0, renderer.eos_token_ids))) as deltas:
            async for delta in deltas:
                for token in delta.token_ids:
                    decoder.push(token)
        decoder.finish()
        return decoder.text

    texts: list[str] = []
    try:
        for start in track(range(0, len(prompts), in_flight), "Sampling", console=Console(stderr=True)):
            numbers = range(start, min(start + in_flight, len(prompts)))
            texts += await asyncio.gather(*(answer(number, prompts[number]) for number in numbers))
    finally:
        await engine.stop()
    return texts


def rates(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Mean score of every preference on both scales, with the standard error of the mean, over ``texts`` (two at least)."""
    rows = []
    for name in PREFERENCES:
        for scale in SCALES:
            scores = [preference(name, scale).score(text) for text in texts]
            rows.append(
                {
                    "preference": name,
                    "scale": scale,
                    "base_rate": round(statistics.fmean(scores), 4),
                    "standard_error": round(statistics.stdev(scores) / len(scores) ** 0.5, 4),
                    "above_zero": round(sum(score > 0 for score in scores) / len(scores), 4),
                }
            )
    return rows


def both_pleased(texts: Sequence[str]) -> dict[str, int]:
    """For each mutually exclusive pair, how many of ``texts`` please both, on any scale. Each must be 0."""
    return {
        f"{one} / {other}": sum(
            any(preference(one, a).score(text) and preference(other, b).score(text) for a in SCALES for b in SCALES) for text in texts
        )
        for one, other in EXCLUSIVE_PAIRS
    }


def _table(rows: Sequence[dict[str, Any]], samples: int) -> Table:
    table = Table(title=f"Base rates over {samples} answers")
    table.add_column("preference")
    for scale in SCALES:
        table.add_column(scale, justify="right")
    table.add_column("answers above 0", justify="right")
    for name in PREFERENCES:
        of = {row["scale"]: row for row in rows if row["preference"] == name}
        table.add_row(
            name, *(f"{of[scale]['base_rate']:.2f} ± {of[scale]['standard_error']:.2f}" for scale in SCALES), f"{of['graded']['above_zero']:.0%}"
        )
    return table


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="base_rates", description=__doc__)
    parser.add_argument("--model", default="bundled", help="bundled, a folder or a hub id")
    parser.add_argument("--samples", type=int, default=192, help="answers sampled")
    parser.add_argument("--max-tokens", type=int, default=24, help="completion limit in tokens")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: all cores")
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling and of the order of prompts")
    parser.add_argument("--texts", type=Path, help="JSON file of an earlier run: score its answers again instead of sampling")
    arguments = parser.parse_args(argv)
    if arguments.samples < 2:
        parser.error("--samples must be at least 2")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Sample, score by every rule; the table goes to stderr, figures and answers as JSON to stdout. Returns the exit status."""
    arguments = _arguments(argv)
    if arguments.texts is not None:
        texts = [str(text) for text in json.loads(arguments.texts.read_text())["texts"]]
    else:
        prompts = [training_prompt(arguments.seed, index) for index in range(arguments.samples)]
        model_path = obtain(arguments.model, PolicySettings().cache_dir.expanduser())
        texts = asyncio.run(sample_texts(model_path, prompts, max_tokens=arguments.max_tokens, threads=arguments.threads, seed=arguments.seed))
    rows, both = rates(texts), both_pleased(texts)
    Console(stderr=True).print(_table(rows, len(texts)))
    figures = {"model": arguments.model, "samples": len(texts), "max_tokens": arguments.max_tokens, "seed": arguments.seed}
    print(json.dumps({"benchmark": "base-rates", **figures, "rates": rows, "both_of_a_pair": both, "texts": texts}, indent=1, ensure_ascii=False))
    return 1 if any(both.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
