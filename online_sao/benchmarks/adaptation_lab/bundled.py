"""The world of a real chat model, without the service: the simulation's users ask, and judge the text by its preferences. Owns how that model
answers.

The bundled model by default. No HTTP, database or engine takes part, so equal options give equal results, timings aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import GenerationConfig

from online_sao.algorithm.recipes import Recipe
from online_sao.benchmarks.adaptation_lab.answers import Judgement
from online_sao.benchmarks.adaptation_lab.stream import Phase
from online_sao.benchmarks.adaptation_lab.world import answer_of
from online_sao.benchmarks.tiny_policy.sampling import Sampled, completion_of
from online_sao.benchmarks.tiny_policy.task import Instance
from online_sao.config import PolicySettings
from online_sao.experience.rewards import score_to_reward
from online_sao.experience.trajectories import build_trajectory
from online_sao.inference.renderer import Renderer
from online_sao.learner.learner import Learner
from online_sao.models.adapter import Adapter, MergedWeights
from online_sao.models.catalog import load_model, obtain
from online_sao.simulation.plan import Plan
from online_sao.types import Interaction, SamplingParams, Trajectory

NAMED = "Answer in one of these styles: {}."
"""The system prompt that tells which styles there are, and not which one is wanted."""


def find(model: str) -> tuple[Path, dict[str, Any]]:
    """The folder of a model as ``policy.model`` names it, and what is said of it."""
    path = obtain(model, PolicySettings().cache_dir)
    return path, {"model": model, "parameters": sum(map(_parameters, path.glob("*.safetensors")))}


def _parameters(file: Path) -> int:
    with safe_open(file, "pt") as tensors:
        return sum(torch.Size(tensors.get_slice(name).get_shape()).numel() for name in tensors.keys())  # noqa: SIM118 (no mapping)


class BundledWorld:
    """``path``: a model folder of models.catalog. ``named``: the system prompt names every style of the plan."""

    at_once = 32

    def __init__(self, path: Path, plan: Plan, *, named: bool, max_tokens: int) -> None:
        self._path = path
        self._plan = plan
        self._system = _naming(plan) if named else []
        self._max_tokens = max_tokens
        self._renderer = Renderer.from_model(path)
        self._model = load_model(path).requires_grad_(False)
        # What a model ships (a repetition penalty, say) would be sampled with, and would not be in the logprobs.
        self._model.generation_config = GenerationConfig()
        self._weights = MergedWeights(self._model)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return phases_of(self._plan)

    def instance(self, interaction: int) -> Instance:
        """The rendered prompt; ``hidden`` is the interaction's number."""
        prompt = self._renderer.render([*self._system, {"role": "user", "content": self._plan.ask(interaction).prompt}])
        return Instance(prompt, (interaction,))

    @torch.no_grad()
    def rollout(
        self, instances: Sequence[Instance], adapters: Mapping[int, Adapter | None], version: int, generator: torch.Generator
    ) -> list[Trajectory]:
        self._weights.apply(adapters[version])
        longest = max(len(instance.prompt) for instance in instances)
        pad = self._renderer.eos_token_ids[0]
        prompts = torch.tensor([[pad] * (longest - len(instance.prompt)) + list(instance.prompt) for instance in instances])
        seen = torch.tensor([[0] * (longest - len(instance.prompt)) + [1] * len(instance.prompt) for instance in instances])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**48, (), generator=generator)))
            sampled = self._model.generate(prompts, attention_mask=seen, generation_config=self._sampling(pad))
        logprobs = torch.log_softmax(torch.stack(sampled.logits, dim=1).float(), dim=-1)
        tokens = sampled.sequences[:, longest:]
        chosen = logprobs.gather(2, tokens.unsqueeze(2)).squeeze(2)
        rows = zip(instances, tokens.tolist(), chosen.tolist(), strict=True)
        return [self._trajectory(number, version, *row) for number, row in enumerate(rows)]

    def _sampling(self, pad: int) -> GenerationConfig:
        return GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self._max_tokens,
            eos_token_id=list(self._renderer.eos_token_ids),
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_logits=True,
        )

    def _trajectory(self, number: int, version: int, instance: Instance, tokens: list[int], logprobs: list[float]) -> Trajectory:
        ends = (place for place, token in enumerate(tokens, start=1) if token in self._renderer.eos_token_ids)
        turn = [Sampled(token, logprob, version) for token, logprob in zip(tokens, logprobs, strict=True)][: next(ends, len(tokens))]
        completion = completion_of(turn, "stop" if turn[-1].token in self._renderer.eos_token_ids else "length")
        asked = Interaction("answer", 0, instance.prompt, completion, SamplingParams(max_tokens=self._max_tokens))
        score = self._score(instance, completion.token_ids)
        return build_trajectory(number, [asked], [score_to_reward(score, 0.0, 1.0)])

    def judge(self, instance: Instance, trajectory: Trajectory) -> Judgement:
        """Style alone: no preference of the simulation asks whether an answer is right."""
        return Judgement(1.0, self._score(instance, answer_of(trajectory)))

    def _score(self, instance: Instance, answer: tuple[int, ...]) -> float:
        (interaction,) = instance.hidden
        phase = next(phase for phase in self._plan.phases if phase.first <= interaction <= phase.last)
        return self._plan.ask(interaction).score(phase, self._renderer.decode(answer))

    def learner(self, recipe: Recipe, *, lora_rank: int, seed: int) -> Learner:
        return Learner.open(self._path, recipe, lora_rank=lora_rank, lora_alpha=2 * lora_rank, seed=seed)


def phases_of(plan: Plan) -> tuple[Phase, ...]:
    return tuple(
        Phase(phase.name, tuple(wanted.name for wanted in phase.preferences), phase.first, phase.last + 1 - phase.first) for phase in plan.phases
    )


def _naming(plan: Plan) -> list[dict[str, str]]:
    styles = dict.fromkeys(wanted.name.replace("-", " ") for phase in plan.phases for wanted in phase.preferences)
    return [{"role": "system", "content": NAMED.format(", ".join(styles))}]
