"""A learner on a random Llama of two layers, built in milliseconds, and trajectories really sampled from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from online_sao.algorithm.recipes import Recipe, critic_advantages, recipe
from online_sao.experience.batching import TrainBatch, pack
from online_sao.learner.learner import Learner
from online_sao.learner.ranks import Ranks
from online_sao.types import Trajectory

VOCABULARY = 48


def tiny_llama() -> LlamaForCausalLM:
    """The same random weights at every call."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return LlamaForCausalLM(config)


@dataclass
class Bench:
    """A learner, and what tests do with it."""

    learner: Learner

    def sample(self, trajectory_id: int, *, prompt: int = 6, tokens: int = 5, reward: float = 1.0, temperature: float = 1.0) -> Trajectory:
        """One trajectory sampled from the policy as it stands, one token and one unpacked forward pass at a time."""
        generator = torch.Generator().manual_seed(trajectory_id)
        ids = torch.randint(VOCABULARY, (prompt,), generator=generator).tolist()
        logprobs = []
        for _ in range(tokens):
            distribution = torch.softmax(self._next_logits(ids) / temperature, dim=-1)
            token = int(torch.multinomial(distribution, 1, generator=generator))
            ids.append(token)
            logprobs.append(float(distribution[token].log()))
        return Trajectory(
            trajectory_id=trajectory_id,
            token_ids=tuple(ids),
            loss_mask=(False,) * prompt + (True,) * tokens,
            behavior_logprobs=(0.0,) * prompt + tuple(logprobs),
            rewards=(0.0,) * (prompt + tokens - 1) + (reward,),
            temperatures=(1.0,) * prompt + (temperature,) * tokens,
            policy_versions=(-1,) * prompt + (0,) * tokens,
        )

    def conversation(
        self, trajectory_id: int, turns: str = "....AAA..A...AA", *, reward: float = 1.0, group_id: int | None = None, shift: float = 0.0
    ) -> Trajectory:
        """Several turns with observations between them, as in '..AA.A' (A: an action token). Any tokens at all, with the policy's own logprobs of
        those that are actions, ``shift`` added; the reward on the last action."""
        generator = torch.Generator().manual_seed(trajectory_id)
        ids = torch.randint(VOCABULARY, (len(turns),), generator=generator).tolist()
        mask = tuple(letter == "A" for letter in turns)
        logprobs = [0.0, *self.learner.score(ids[:1], ids[1:], 1.0)]
        last = turns.rindex("A")
        return Trajectory(
            trajectory_id=trajectory_id,
            token_ids=tuple(ids),
            loss_mask=mask,
            behavior_logprobs=tuple(logprob + shift if flag else 0.0 for logprob, flag in zip(logprobs, mask, strict=True)),
            rewards=tuple(reward if position == last else 0.0 for position in range(len(ids))),
            temperatures=(1.0,) * len(ids),
            policy_versions=tuple(0 if flag else -1 for flag in mask),
            group_id=group_id,
        )

    def batch(self, rewards: Sequence[float] = (1.0, -1.0, 0.5, -0.5), *, max_tokens: int = 1000, first_id: int = 0, **sampling: Any) -> TrainBatch:
        """Trajectories of different lengths, one for each reward."""
        lengths = ((6, 5), (9, 3), (4, 7), (12, 1))
        chosen = []
        for number, reward in enumerate(rewards):
            prompt, tokens = lengths[number % len(lengths)]
            chosen.append(self.sample(first_id + number, prompt=prompt, tokens=tokens, reward=reward, **sampling))
        return pack(chosen, max_tokens)

    def conversations(self, *, max_tokens: int = 40, first_id: int = 0, shift: float = 0.0) -> TrainBatch:
        """Six trajectories, several of them with observations between actions, three to a group."""
        turns = ("....AAA..A...AA", "..A.AA", "...AAAA", ".A....A", "......AAA.AAA", "..AA")
        rewards = (1.0, -1.0, 0.5, -0.5, 0.0, 0.8)
        made = (
            self.conversation(first_id + number, masked, reward=reward, group_id=number % 2, shift=shift)
            for number, (masked, reward) in enumerate(zip(turns, rewards, strict=True))
        )
        return pack(list(made), max_tokens)

    @torch.no_grad()
    def _next_logits(self, ids: list[int]) -> torch.Tensor:
        tokens = torch.tensor(ids)
        states = self.learner.policy.states(tokens, torch.arange(len(ids)), torch.zeros_like(tokens), torch.tensor([len(ids) - 1]))
        return self.learner.policy.logits(states)[0]

    def policy(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.learner.policy.parameters().items()}

    def value(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.learner.value.parameters().items()}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    """Whether a single number of these weights is another one."""
    return any(not torch.equal(before[name], after[name]) for name in before)


def make_bench(*, lora_rank: int = 4, ranks: Ranks | None = None, **numbers: Any) -> Bench:
    """``live`` numbers made quick (large steps, no warm-up, no anchor), the critic as it stands, and whatever is overridden."""
    chosen = {
        "policy_learning_rate": 1e-2,
        "value_learning_rate": 1e-2,
        "value_updates": 2,
        "value_warmup_updates": 0,
        "anchor_coefficient": 0.0,
        "least_step": 1.0,
        "credit": critic_advantages,
        "fresh_values": True,
        **numbers,
    }
    return bench_of(recipe("sao", "live", **chosen), lora_rank=lora_rank, ranks=ranks)


def bench_of(chosen: Recipe, *, lora_rank: int = 4, ranks: Ranks | None = None) -> Bench:
    """A learner that follows the recipe as it is."""
    return Bench(Learner(tiny_llama(), "tiny", chosen, lora_rank=lora_rank, lora_alpha=2 * lora_rank, ranks=ranks))
