"""Several ranks are as good as one: the same gradients, the same report, the same weights, whatever share of the batch falls to each."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from tiny_learner import Bench, make_bench

from online_sao.config import GateSettings
from online_sao.experience.batching import TrainBatch, pack
from online_sao.learner.learner import UpdateCancelledError
from online_sao.publishing.gates import check
from online_sao.types import Trajectory

NUMBERS = {"anchor_coefficient": 0.1, "anchor_gain": 30.0}
RELATIVE = 1e-5


@dataclasses.dataclass
class Work:
    """Batches one after the other, a pretraining, a cancelled update and a poisoned one, and what is asked of the learner in between."""

    batches: list[TrainBatch]
    logged: list[Trajectory]
    poisoned: TrainBatch


def everything(bench: Bench, work: Work) -> dict[str, Any]:
    gradients: list[list[torch.Tensor]] = []
    learner = bench.learner
    for optimizer in (learner._policy_optimizer, learner._value_optimizer):
        optimizer.register_step_pre_hook(
            lambda optimizer, *_: gradients.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])
        )
    pretraining = learner.pretrain_value(work.logged, max_tokens=30, max_epochs=2)
    reports = [learner.update(batch) for batch in work.batches]
    after = {**bench.policy(), **bench.value()}
    digest, scores = learner.served_digest(), learner.score([1, 2, 3], [4, 5], 0.7)

    snapshot = learner.snapshot()
    answers = iter([False, False, True])
    with pytest.raises(UpdateCancelledError):
        learner.update(work.batches[0], cancelled=lambda: next(answers))
    learner.restore(snapshot)
    poisoned = learner.update(work.poisoned)
    assert check(poisoned, GateSettings()) == poisoned.problem
    learner.restore(snapshot)
    again = learner.update(work.batches[0])
    return {
        "gradients": gradients,
        "reports": [*reports, again],
        "pretraining": dataclasses.astuple(pretraining),
        "weights": after,
        "end": {**bench.policy(), **bench.value()},
        "digest": digest,
        "scores": scores,
        "poisoned": poisoned.problem,
    }


def the_work() -> Work:
    bench = make_bench()
    # Five microbatches, three, and one: two ranks have unequal shares, and then one of them has none.
    batches = [
        bench.batch(rewards=(1.0, -1.0, 0.5, -0.5, 0.3, -0.2, 0.9), max_tokens=12),
        bench.batch(first_id=20, max_tokens=15),
        bench.batch(first_id=40, max_tokens=1000),
    ]
    assert [len(batch.microbatches) % 2 for batch in batches] == [1, 1, 1]
    assert len(batches[2].microbatches) == 1
    masked = dataclasses.replace(batches[1].trajectories[1], behavior_logprobs=(-1000.0,) * len(batches[1].trajectories[1].token_ids))
    batches[1] = pack([t if i != 1 else masked for i, t in enumerate(batches[1].trajectories)], 15)
    logged = [bench.sample(60 + number, reward=float(number % 3) - 1) for number in range(10)]
    return Work(batches, logged, bench.batch(rewards=(1.0, 1e30, -1.0, 0.0), first_id=80, max_tokens=12))


@pytest.fixture(scope="module")
def work() -> Work:
    return the_work()


@pytest.fixture(scope="module")
def alone(work: Work) -> dict[str, Any]:
    return everything(make_bench(**NUMBERS), work)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= RELATIVE * one.norm() + 1e-12)


def worst(alone: dict[str, Any], together: dict[str, Any]) -> float:
    """The largest relative difference of any gradient of the first step."""
    return max(float((a - b).norm() / a.norm().clamp(min=1e-12)) for a, b in zip(alone["gradients"][0], together["gradients"][0], strict=True))


@pytest.mark.parametrize(("size", "sharded"), [(2, False), (2, True), (3, False)])
def test_ranks_compute_what_one_computes(tmp_path: Path, work: Work, alone: dict[str, Any], size: int, sharded: bool) -> None:
    together = run_ranks(size, tmp_path, NUMBERS, everything, work, sharded=sharded)

    assert len(together["gradients"]) == len(alone["gradients"]) > 10
    for number, (one, several) in enumerate(zip(alone["gradients"], together["gradients"], strict=True)):
        for a, b in zip(one, several, strict=True):
            # Later steps start from weights that differ by rounding, which Adam's division makes larger where a gradient is next to nothing.
            tolerance = RELATIVE if number == 0 else 1e-3
            assert float((a - b).norm()) <= tolerance * float(a.norm()) + 1e-7, number
    for one, several in zip(alone["reports"], together["reports"], strict=True):
        assert one.problem == several.problem
        assert several.masked_fraction == pytest.approx(one.masked_fraction)
        timeless = {name: value for name, value in one.metrics.items() if not name.endswith("/seconds")}
        assert {name: several.metrics[name] for name in timeless} == pytest.approx(timeless, rel=1e-4, abs=1e-5)
    assert together["pretraining"] == pytest.approx(alone["pretraining"], rel=1e-4, abs=1e-5)
    for name in alone["weights"]:
        torch.testing.assert_close(together["weights"][name], alone["weights"][name], rtol=1e-4, atol=1e-5)
    assert together["digest"] == pytest.approx(alone["digest"], abs=1e-4)
    assert together["scores"] == pytest.approx(alone["scores"], abs=1e-4)
    assert together["poisoned"] == alone["poisoned"]
    for rank in range(1, size):
        theirs = torch.load(tmp_path / f"weights-{rank}.pt", weights_only=False)
        assert all(torch.equal(theirs[name], together["end"][name]) for name in theirs), "all ranks hold the same adapters, bit for bit"


def first_steps(bench: Bench, work: Work) -> dict[str, Any]:
    seen: list[list[torch.Tensor]] = []
    for optimizer in (bench.learner._value_optimizer, bench.learner._policy_optimizer):
        optimizer.register_step_pre_hook(
            lambda optimizer, *_: seen.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])
        )
    report = bench.learner.update(work.batches[0])
    return {"gradients": seen, "norm": report.metrics["policy/grad_norm"]}


def test_an_average_in_the_place_of_the_sum_is_noticed(tmp_path: Path, work: Work) -> None:
    alone = first_steps(make_bench(**NUMBERS), work)
    averaged = run_ranks(2, tmp_path, NUMBERS, first_steps, work, break_sum=True)
    assert worst(alone, averaged) > 0.1
    assert averaged["norm"] != pytest.approx(alone["norm"], rel=0.1)


def share_of_the_base(bench: Bench, _: Any) -> tuple[int, int, list[float]]:
    blocks = [p for name, p in bench.learner._backbone.module.named_parameters() if ".layers." in name and "lora_" not in name]
    local = sum(p.to_local().numel() for p in blocks)
    scores = bench.learner.score([1, 2], [3], 1.0)
    assert all(math.isfinite(score) for score in scores)
    return local, sum(p.numel() for p in blocks), scores


def test_a_sharded_base_is_really_divided(tmp_path: Path) -> None:
    local, whole, scores = run_ranks(2, tmp_path, {}, share_of_the_base, None, sharded=True)
    assert local == whole / 2
    assert scores == pytest.approx(make_bench().learner.score([1, 2], [3], 1.0), abs=1e-5)


def failing(bench: Bench, work: Work) -> str:
    """An error that only rank 1 meets, in the middle of its share, is everybody's, and the ranks go on together afterwards."""
    batch = work.batches[0]
    index = batch.microbatches[1].trajectory_index[:1]
    broken = dataclasses.replace(batch.microbatches[1], input_ids=torch.full_like(batch.microbatches[1].input_ids, 10_000))
    assert index.numel()
    snapshot = bench.learner.snapshot()
    with pytest.raises(RuntimeError, match="on rank 1: IndexError") as error:
        bench.learner.update(dataclasses.replace(batch, microbatches=(batch.microbatches[0], broken, *batch.microbatches[2:])))
    bench.learner.restore(snapshot)
    assert bench.learner.update(batch).problem is None
    return str(error.value)


def test_an_error_of_one_rank_is_raised_on_all(tmp_path: Path, work: Work) -> None:
    assert "IndexError" in run_ranks(2, tmp_path, NUMBERS, failing, work)
