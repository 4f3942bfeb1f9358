"""What one SAO update costs, and how near it comes to what this machine's matrix products allow: whole updates of the real learner, alternating with
TRL's GRPO step on the same model, tokens and LoRA shape. Run with `python -m online_sao.benchmarks.learner`.

Share of the peak: the floating point operations an update must do (benchmarks/flops.py says what is counted) / its time / the rate of plain fp32
matrix products of the model's own shapes (benchmarks/peak.py). Executed operations are counted too: what lies above the account need not be done.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from online_sao.algorithm.recipes import Recipe, recipe
from online_sao.benchmarks import flops, trl_grpo
from online_sao.benchmarks.learner_report import write_report
from online_sao.benchmarks.measured import environment, measured, peak_memory, time_by_kind
from online_sao.benchmarks.peak import matmul_peak, products_rate
from online_sao.benchmarks.report_files import write_result
from online_sao.config import LearningSettings, PolicySettings
from online_sao.experience.batching import TrainBatch, pack
from online_sao.inference.renderer import Renderer
from online_sao.learner.learner import Learner
from online_sao.learner.ranks import Ranks
from online_sao.learner.threads import Threads
from online_sao.models.catalog import load_model, obtain
from online_sao.models.projections import find_projections
from online_sao.simulation.prompts import TRAINING
from online_sao.types import Trajectory

console = Console(stderr=True, highlight=False)
PEAK_REPETITIONS = 3
OURS = ("sao", "sao-frozen-trunk", "running-mean")
"""Recipes. ``running-mean`` has no value model: its update is one policy step beside the base, as GRPO's with a KL. ``sao-frozen-trunk`` has one that
reads the base's states."""
RIVALS = {"trl grpo": False, "trl grpo, KL": True}
"""With the KL to the base or without."""


@dataclass(frozen=True, slots=True)
class Case:
    """``what``: the size that is varied in it. ``tokens``: of each answer."""

    what: str
    trajectories: int = 8
    tokens: int = 24
    rank: int = 16

    @property
    def size(self) -> int:
        return {"batch": self.trajectories, "length": self.tokens, "rank": self.rank}.get(self.what, self.trajectories)


def make_trajectories(model_path: Path, case: Case, vocabulary: int) -> list[Trajectory]:
    """Real prompts under the model's own template, random answers (what is said does not change what it costs), rewards of both signs."""
    renderer = Renderer.from_model(model_path)
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(case.trajectories):
        prompt = renderer.render([{"role": "user", "content": TRAINING[number % len(TRAINING)]}])
        answer = torch.randint(vocabulary, (case.tokens,), generator=generator).tolist()
        before, length = len(prompt), len(prompt) + case.tokens
        made.append(
            Trajectory(
                trajectory_id=number,
                token_ids=(*prompt, *answer),
                loss_mask=(False,) * before + (True,) * case.tokens,
                behavior_logprobs=(0.0,) * length,
                rewards=(0.0,) * (length - 1) + (float(number % 3 - 1),),
                temperatures=(1.0,) * length,
                policy_versions=(-1,) * before + (0,) * case.tokens,
            )
        )
    return made


@dataclass(frozen=True, slots=True)
class Setting:
    """What all learners of a case have in common. ``at_once``: the microbatches they compute side by side."""

    model_path: Path
    trajectories: Sequence[Trajectory]
    rank: int
    microbatch_tokens: int
    at_once: int


class Ours:
    """A learner that stands before its second update (the first has the warm-up passes), and goes back there before every step."""

    def __init__(self, setting: Setting, chosen: Recipe, ranks: Ranks) -> None:
        self._setting, self.recipe = setting, chosen
        self._learner = Learner.open(setting.model_path, chosen, lora_rank=setting.rank, lora_alpha=2 * setting.rank, ranks=ranks)
        self.batch = self._sampled()
        self._learner.update(self.batch)
        self._state = self._learner.snapshot()
        self.batch = self._sampled()

    def _sampled(self) -> TrainBatch:
        """As if the policy had just sampled them: no token is masked."""
        seen = []
        for trajectory in self._setting.trajectories:
            first = trajectory.loss_mask.index(True)
            logprobs = self._learner.score(trajectory.token_ids[:first], trajectory.token_ids[first:], 1.0)
            seen.append(replace(trajectory, behavior_logprobs=(0.0,) * first + tuple(logprobs)))
        return pack(seen, self._setting.microbatch_tokens, self._setting.at_once)

    def prepare(self) -> None:
        self._learner.restore(self._state)

    def step(self) -> dict[str, float]:
        metrics = self._learner.update(self.batch).metrics
        return {"value": metrics["value/seconds"], "policy": metrics["policy/seconds"], "masked": metrics["policy/masked_fraction"]}

    def to_count(self) -> Ours:
        """The same with its microbatches one after the other: operations are counted in the thread that asks for it."""
        return self if self._setting.at_once == 1 else Ours(self._setting, self.recipe, Ranks())


class Theirs:
    """TRL's GRPO step, which keeps no state that has to be put back."""

    def __init__(self, setting: Setting, with_reference: bool, folder: Path) -> None:
        self._step = trl_grpo.GRPOStep(
            setting.model_path,
            setting.trajectories,
            rank=setting.rank,
            alpha=2 * setting.rank,
            learning_rate=1e-5,
            with_reference=with_reference,
            folder=folder,
        )

    def prepare(self) -> None:
        """Nothing."""

    def step(self) -> dict[str, float]:
        self._step()
        return {}

    def to_count(self) -> Theirs:
        return self


def run_case(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """All contestants on one batch, taking turns."""
    model = load_model(arguments.model_path)
    shape, weights = flops.Shape.of(model), [model.get_submodule(name).weight for name in find_projections(model).names]
    trajectories, at_once = make_trajectories(arguments.model_path, case, shape.vocabulary), arguments.at_once
    setting = Setting(arguments.model_path, trajectories, case.rank, arguments.microbatch_tokens, at_once)
    ours = {name: Ours(setting, recipe(name, "live"), Threads(at_once) if at_once > 1 else Ranks()) for name in OURS}
    batch = ours["sao"].batch
    # Rows made for threads to share compute a prefix more than once, which need not be.
    work, necessary = flops.Work.of(batch), flops.Work.of(pack(batch.trajectories, arguments.microbatch_tokens))
    row, matrices = round(work.tokens / len(batch.microbatches)), [(matrix.inputs, matrix.outputs) for matrix in shape.matrices]
    needed = {name: flops.update(shape, necessary, one.recipe, case.rank) for name, one in ours.items()}
    tokens = sum(len(trajectory.token_ids) for trajectory in trajectories)
    with tempfile.TemporaryDirectory() as scratch:
        contestants: dict[str, Ours | Theirs] = dict(ours)
        if arguments.trl:
            contestants |= {name: Theirs(setting, wanted, Path(scratch)) for name, wanted in RIVALS.items()}
        repetitions = arguments.repetitions if case.what == "usual" else arguments.growth_repetitions
        runs = _take_turns(contestants, repetitions, f"{case.what} {case.size}", lambda: matmul_peak(row, matrices, PEAK_REPETITIONS))
        results = {name: _result(one, runs[name], tokens, needed.get(name)) for name, one in contestants.items()}
    return {
        "what": case.what,
        "size": case.size,
        "trajectories": case.trajectories,
        "answer_tokens": case.tokens,
        "rank": case.rank,
        "computed_tokens": work.tokens,
        "action_tokens": work.action_tokens,
        "all_tokens": tokens,
        "products_rate": products_rate(row, weights, PEAK_REPETITIONS),
        "matmul_peak": measured([run["peak"] for found in runs.values() for run in found]),
        "contestants": results,
    }


def _take_turns(contestants: dict[str, Ours | Theirs], repetitions: int, title: str, peak: Callable[[], float]) -> dict[str, list[dict[str, Any]]]:
    """Every contestant once each turn, who is first changing; one turn before those that count. The peak is measured beside every step, so that a
    share of it compares what the machine gave at the same time."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for turn in track(range(repetitions + 1), title, console=console):
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            contestants[name].prepare()
            rate = peak()
            began, began_cpu = time.perf_counter(), time.process_time()
            said = contestants[name].step()
            seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            if turn:
                runs[name].append({"seconds": seconds, "cpu_seconds": cpu, "peak": rate, **said})
    return runs


def _result(contestant: Ours | Theirs, runs: Sequence[dict[str, Any]], tokens: int, needed: dict[str, int] | None) -> dict[str, Any]:
    """The measured runs, and three more steps: to count operations, to see where the time goes, to see the memory."""
    counted = contestant.to_count()
    counted.prepare()
    with flops.Executed() as executed:
        counted.step()
    del counted
    contestant.prepare()
    with time_by_kind(all_threads=True) as kinds:
        contestant.step()
    contestant.prepare()
    memory = peak_memory(contestant.step)
    seconds = measured([run["seconds"] for run in runs])
    at_peak = [run["seconds"] * run["peak"] for run in runs]
    total = sum(needed.values()) if needed else None
    return {
        "seconds": seconds,
        "cpu_seconds": measured([run["cpu_seconds"] for run in runs]),
        "parts": {part: measured([run[part] for run in runs]) for part in ("value", "policy") if part in runs[0]},
        "masked_fraction": max((run.get("masked", 0.0) for run in runs), default=0.0),
        "tokens_per_second": tokens / seconds["median"],
        "flops": total,
        "flops_by_part": needed,
        "executed_flops": executed.flops,
        "share_of_peak": None if total is None else measured([total / most for most in at_peak]),
        "executed_share_of_peak": measured([executed.total / most for most in at_peak]),
        "time_by_kind": kinds,
        "memory": memory,
    }


def _cases(arguments: argparse.Namespace) -> list[Case]:
    """The case everybody is compared on first, then the sizes that are varied."""
    usual = Case("usual", tokens=arguments.tokens)
    return [
        usual,
        *(replace(usual, what="batch", trajectories=count) for count in arguments.batches),
        *(replace(usual, what="length", tokens=tokens) for tokens in arguments.lengths),
        *(replace(usual, what="rank", rank=rank) for rank in arguments.ranks),
    ]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="learner", description=__doc__)
    parser.add_argument("--model", default="bundled", help="bundled, a folder or a hub id")
    parser.add_argument("--repetitions", type=int, default=7, help="measured steps of each contestant in the usual case")
    parser.add_argument("--growth-repetitions", type=int, default=3, help="and where a size is varied")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of an answer, where the length is not varied")
    parser.add_argument("--batches", type=int, nargs="*", default=[4, 16, 32], help="trajectories in an update, beside the usual 8")
    parser.add_argument("--lengths", type=int, nargs="*", default=[96, 256], help="tokens of an answer, beside the usual")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 64], help="LoRA ranks, beside the usual 16")
    parser.add_argument("--microbatch-tokens", type=int, default=LearningSettings().microbatch_tokens, help="as learning.microbatch_tokens")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: all cores")
    parser.add_argument("--at-once", type=int, default=0, help="microbatches our updates compute side by side; 0: one a thread")
    parser.add_argument("--no-trl", dest="trl", action="store_false", help="without TRL, which is not needed then")
    parser.add_argument("--out", type=Path, default=Path("learner-bench"), help="folder of learner.json, report.md and growth.png")
    parser.add_argument("--report-only", action="store_true", help="make the report anew from learner.json")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every case and write it as JSON, then the report. Returns the exit status: 2 if TRL is wanted and not there, 1 if there is
    nothing to report on."""
    arguments = _arguments(argv)
    path = arguments.out / "learner.json"
    if not arguments.report_only:
        if arguments.trl and not trl_grpo.available():
            console.print(f"TRL is not installed: {trl_grpo.INSTALL}, or --no-trl to measure without it.", style="red", markup=False)
            return 2
        torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
        arguments.at_once = arguments.at_once or torch.get_num_threads()
        arguments.model_path = obtain(arguments.model, PolicySettings().cache_dir)
        result: dict[str, Any] = {"benchmark": "learner", "format": 1, "model": arguments.model, "environment": environment(), "cases": []}
        for case in _cases(arguments):
            result["cases"].append(run_case(case, arguments))
            write_result(path, result, indent=1)  # after each: who is interrupted keeps what was measured, and can have a report of it
    elif not path.exists():
        console.print(f"There is no {path}.", style="red")
        return 1
    for written in write_report(json.loads(path.read_text()), arguments.out):
        console.print(f"wrote {written}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
