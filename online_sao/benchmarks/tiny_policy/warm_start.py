"""The base policy of a run: a causal transformer of about a million parameters, taught a task just well enough that reward has something to raise.

Owns its size, its supervision and the cache of what came of it, by task and seed; every recipe begins with the same one.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from online_sao.benchmarks.tiny_policy.sampling import Sampler, success_rate
from online_sao.benchmarks.tiny_policy.task import BEGIN, END, PAD, Task

IGNORED = -100
"""Of cross-entropy: tokens that the teacher did not choose."""
ORDER = 0.02
"""How strongly numbers begin in their order: as much as the rest of an embedding varies."""
TIED = "lm_head.weight"
"""The embedding again: kept once."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Numbers of model and supervision. It ends at the first look at which ``goal`` of the sampled answers are right, or after ``max_steps``."""

    hidden_size: int = 128
    intermediate_size: int = 512
    layers: int = 4
    heads: int = 4
    batch_size: int = 32
    learning_rate: float = 1e-3
    max_steps: int = 1000
    goal: float = 0.3
    steps_between_looks: int = 25
    looked_at: int = 256

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        return self.learning_rate


@dataclass(frozen=True, slots=True)
class CooledWarmStart(WarmStart):
    """The learning rate falls to 0 over the last steps: what is taught in equal parts is then done in equal parts, not as the last batches had it."""

    cooling_steps: int = 150

    def rate(self, step: int) -> float:
        return self.learning_rate * min(1.0, (self.max_steps - step) / self.cooling_steps)


def obtain(task: Task, seed: int, numbers: WarmStart, cache: Path, progress: Callable[[int, int, float], None]) -> tuple[Path, dict[str, Any]]:
    """The folder of the warm start, made where it is not there yet, and what is said of it: steps and success rate.

    ``progress(step, most, success_rate)`` is called at every look.
    """
    # What was taught with other numbers, by another teacher or in another way is another warm start.
    taught = (
        json.dumps(asdict(numbers), sort_keys=True) + inspect.getsource(sys.modules[type(task).__module__]) + inspect.getsource(sys.modules[__name__])
    )
    folder = cache / f"{task.name}-seed{seed}-{hashlib.sha256(taught.encode()).hexdigest()[:12]}"
    if not (folder / "about.json").is_file():
        model, about = _teach(task, seed, numbers, progress)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor for name, tensor in model.state_dict().items() if name != TIED}
        save_file(tensors, folder / "model.safetensors")
        unfinished = folder / "about.tmp"
        unfinished.write_text(json.dumps(about, indent=1))
        unfinished.rename(folder / "about.json")
    return folder, json.loads((folder / "about.json").read_text())


def load(task: Task, folder: Path, numbers: WarmStart) -> LlamaForCausalLM:
    """A copy of its own at every call."""
    model = _new_model(task, numbers)
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({**tensors, TIED: tensors["model.embed_tokens.weight"]})
    return model


def _new_model(task: Task, numbers: WarmStart) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=task.vocabulary,
        hidden_size=numbers.hidden_size,
        intermediate_size=numbers.intermediate_size,
        num_hidden_layers=numbers.layers,
        num_attention_heads=numbers.heads,
        num_key_value_heads=numbers.heads,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config)


def _teach(task: Task, seed: int, numbers: WarmStart, progress: Callable[[int, int, float], None]) -> tuple[LlamaForCausalLM, dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _new_model(task, numbers)
    if task.ordered:
        _order(model, task.ordered)
    random, generator = Random(f"warm start {task.name} {seed}"), torch.Generator().manual_seed(seed)
    questions = [task.instance(random) for _ in range(numbers.looked_at)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=numbers.learning_rate, weight_decay=0.0, fused=True)
    right, step = 0.0, 0
    while right < numbers.goal and step < numbers.max_steps:
        for _ in range(numbers.steps_between_looks):
            token_ids, targets = _demonstrations(task, random, numbers.batch_size)
            logits = model(input_ids=token_ids[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED)
            optimizer.zero_grad(set_to_none=True)
            optimizer.param_groups[0]["lr"] = numbers.rate(step)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
        right = success_rate(Sampler(copy.deepcopy(model)).rollout(task, questions, {0: None}, 0, generator))
        progress(step, numbers.max_steps, right)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return model, {"task": task.name, "seed": seed, "parameters": parameters, "steps": step, "success_rate": right, "numbers": asdict(numbers)}


@torch.no_grad()
def _order(model: LlamaForCausalLM, tokens: range) -> None:
    """Neighbours begin with similar embeddings: that numbers have an order need not be learned first."""
    embedding = model.get_input_embeddings().weight
    largest = len(tokens) - 1
    frequencies = torch.linspace(torch.pi / 2 / largest, torch.pi / 2, embedding.shape[1] // 2)
    angles = torch.arange(len(tokens))[:, None] * frequencies
    embedding[tokens.start : tokens.stop] += ORDER * torch.cat([angles.sin(), angles.cos()], dim=1)


def _demonstrations(task: Task, random: Random, count: int) -> tuple[Tensor, Tensor]:
    """Token ids and targets [B, T], padded on the right: causal attention does not see what follows."""
    rows: list[tuple[list[int], list[int]]] = []
    for _ in range(count):
        instance = task.instance(random)
        turns = task.demonstrate(instance, random)
        token_ids = list(instance.prompt)
        targets = [IGNORED] * len(token_ids)
        for place, turn in enumerate(turns, start=1):
            token_ids += turn
            targets += turn
            follows = task.react(instance, turns[:place])
            if isinstance(follows, tuple):
                token_ids += follows
                targets += [IGNORED] * len(follows)
        rows.append((token_ids, targets))
    longest = max(len(token_ids) for token_ids, _ in rows)
    return (
        torch.tensor([token_ids + [PAD] * (longest - len(token_ids)) for token_ids, _ in rows]),
        torch.tensor([targets + [IGNORED] * (longest - len(targets)) for _, targets in rows]),
    )
