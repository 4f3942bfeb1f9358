"""Several ranks are as good as one: the same gradients, the same report, the same weights, whatever share of the batch falls to each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from tiny_learner import Bench, make_bench
from torch.distributed.tensor import DTensor

from online_sao.algorithm.recipes import decoupled_weights
from online_sao.config import GateSettings
from online_sao.experience.batching import TrainBatch, pack
from online_sao.learner.learner import Learner, UpdateCancelledError
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
    if learner.ranks.size > 1 and not learner.ranks.sharded:
        _fail_on_rank_1(learner, work.batches[0])
        learner.restore(snapshot)
    again = learner.update(work.batches[0])
    return {
        "base": _base_held(bench),
        "gradients": gradients,
        "reports": [*reports, again],
        "pretraining": dataclasses.astuple(pretraining),
        "weights": after,
        "end": {**bench.policy(), **bench.value()},
        "digest": digest,
        "scores": scores,
        "poisoned": poisoned.problem,
    }


def _fail_on_rank_1(learner: Learner, batch: TrainBatch) -> None:
    """An error that only rank 1 meets, in the middle of its share, is everybody's, and the ranks go on together afterwards."""
    first, second, *others = batch.microbatches
    broken = dataclasses.replace(second, input_ids=torch.full_like(second.input_ids, 10_000))
    with pytest.raises(RuntimeError, match="on rank 1: IndexError"):
        learner.update(dataclasses.replace(batch, microbatches=(first, broken, *others)))


def _base_held(bench: Bench) -> tuple[int, int]:
    """Numbers of the blocks' frozen weights that this rank holds, and that there are."""
    blocks = [p for name, p in bench.learner._backbone.module.named_parameters() if ".layers." in name and "lora_" not in name]
    return sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in blocks), sum(p.numel() for p in blocks)


def the_work() -> Work:
    bench = make_bench()
    # Shares of two ranks: unequal, equal, and none for one of them.
    batches = [
        bench.batch(rewards=(1.0, -1.0, 0.5, -0.5, 0.3, -0.2, 0.9), max_tokens=12),
        bench.batch(first_id=20, max_tokens=15),
        bench.batch(first_id=40, max_tokens=1000),
    ]
    assert [len(batch.microbatches) % 2 for batch in batches] == [1, 0, 1]
    assert len(batches[0].microbatches) > len(batches[2].microbatches) == 1
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


@pytest.mark.parametrize("sharded", [False, True])
def test_two_ranks_compute_what_one_computes(tmp_path: Path, work: Work, alone: dict[str, Any], sharded: bool) -> None:
    together = run_ranks(2, tmp_path, NUMBERS, everything, work, sharded=sharded)

    assert_as_good(together, alone)
    theirs = torch.load(tmp_path / "weights-1.pt", weights_only=False)
    assert all(torch.equal(theirs[name], together["end"][name]) for name in theirs), "all ranks hold the same adapters, bit for bit"
    held, whole = together["base"]
    assert held == (whole / 2 if sharded else whole)


def assert_as_good(together: dict[str, Any], alone: dict[str, Any]) -> None:
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


def norms(bench: Bench, work: Work) -> dict[str, float]:
    metrics = bench.learner.update(work.batches[0]).metrics
    return {name: metrics[name] for name in ("policy/grad_norm", "value/grad_norm")}


def test_an_average_in_the_place_of_the_sum_is_noticed(tmp_path: Path, work: Work) -> None:
    alone = norms(make_bench(**NUMBERS), work)
    averaged = run_ranks(2, tmp_path, NUMBERS, norms, work, break_sum=True)
    assert averaged["value/grad_norm"] == pytest.approx(alone["value/grad_norm"] / 2, rel=0.1)
    assert averaged["policy/grad_norm"] != pytest.approx(alone["policy/grad_norm"], rel=0.1)


def several_steps(bench: Bench, batch: TrainBatch) -> dict[str, Any]:
    reports = [bench.learner.update(batch) for _ in range(2)]
    return {"metrics": reports[-1].metrics, "masked": reports[-1].masked_fraction, "weights": bench.policy() | bench.value()}


@pytest.mark.parametrize(("value_adapter", "sharded"), [("mlp", False), ("none", False), ("none", True)])
def test_two_ranks_take_the_same_steps_as_one(tmp_path: Path, value_adapter: str, sharded: bool) -> None:
    numbers = {
        "value_adapter": value_adapter,
        "policy_minibatches": 2,
        "weigh": decoupled_weights,
        "proximal_ratio_high": 5.0,
        "observation_values": value_adapter != "none",
        "anchor_coefficient": 0.1,
        "policy_learning_rate": 1e-3,
    }
    batch = make_bench().conversations(max_tokens=8, shift=0.1)
    assert len(batch.microbatches) == 5  # shares of 3 and 2: the first is not the same for both ranks
    alone = several_steps(make_bench(**numbers), batch)
    together = run_ranks(2, tmp_path, numbers, several_steps, batch, sharded=sharded)
    timeless = {name: value for name, value in alone["metrics"].items() if not name.endswith("/seconds")}
    assert {name: together["metrics"][name] for name in timeless} == pytest.approx(timeless, rel=1e-3, abs=1e-5)
    assert together["masked"] == alone["masked"]
    for name, tensor in alone["weights"].items():
        torch.testing.assert_close(together["weights"][name], tensor, rtol=1e-3, atol=1e-5)
