"""Logged interactions to one token-aligned trajectory. Owns which token is an action, where a reward sits and which version sampled what.

Knows nothing of where interactions are kept, nor of batches or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from online_sao.types import Interaction, Trajectory


def build_trajectory(trajectory_id: int, interactions: Sequence[Interaction], rewards: Sequence[float]) -> Trajectory:
    """One trajectory from the turns of one episode, oldest first (a lone completion is an episode of one turn).

    The turns must preserve their prefix: the prompt of turn k+1 begins with the exact ids of turn k's prompt and completion. What follows them
    in that prompt is an observation: seen by the policy, not sampled by it, never trained on. Prompt and observation tokens carry loss_mask
    False, behavior logprob 0, reward 0, temperature 1 and policy version −1. ``rewards[k]`` sits on the last token of turn k's completion (the
    end-of-turn token where one was sampled). ``truncated`` is set if any turn was cut off by its length limit.

    Raises ValueError, naming the turn, if there is no turn, a count does not match, a prefix is not preserved, a completion is empty or was
    sampled in a way that cannot train (greedy, truncated distribution, abandoned, failed), the first prompt is empty, or the version spans do
    not cover the completion exactly.
    """
    if not interactions:
        raise ValueError("a trajectory needs at least one interaction")
    if len(rewards) != len(interactions):
        raise ValueError(f"{len(interactions)} interactions need as many rewards, not {len(rewards)}")
    token_ids: list[int] = []
    loss_mask: list[bool] = []
    behavior_logprobs: list[float] = []
    token_rewards: list[float] = []
    temperatures: list[float] = []
    policy_versions: list[int] = []
    for turn, (interaction, reward) in enumerate(zip(interactions, rewards, strict=True)):
        _check(turn, interaction)
        if list(interaction.prompt_ids[: len(token_ids)]) != token_ids:
            raise ValueError(f"turn {turn}: its prompt does not begin with the {len(token_ids)} tokens of the turns before it")
        observation = interaction.prompt_ids[len(token_ids) :]
        action = interaction.completion.token_ids
        token_ids += [*observation, *action]
        loss_mask += [False] * len(observation) + [True] * len(action)
        behavior_logprobs += [0.0] * len(observation) + list(interaction.completion.behavior_logprobs)
        token_rewards += [0.0] * (len(observation) + len(action) - 1) + [reward]
        temperatures += [1.0] * len(observation) + [interaction.sampling.temperature] * len(action)
        policy_versions += [-1] * len(observation) + _versions(turn, interaction)
    return Trajectory(
        trajectory_id=trajectory_id,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        behavior_logprobs=tuple(behavior_logprobs),
        rewards=tuple(token_rewards),
        temperatures=tuple(temperatures),
        policy_versions=tuple(policy_versions),
        truncated=any(interaction.completion.finish_reason == "length" for interaction in interactions),
    )


def _check(turn: int, interaction: Interaction) -> None:
    completion = interaction.completion
    if not interaction.prompt_ids:
        raise ValueError(f"turn {turn}: the prompt is empty; an action's first token is predicted from the token before it")
    if not completion.token_ids:
        raise ValueError(f"turn {turn}: the completion has no tokens")
    if len(completion.behavior_logprobs) != len(completion.token_ids):
        raise ValueError(f"turn {turn}: {len(completion.token_ids)} tokens but {len(completion.behavior_logprobs)} behavior logprobs")
    if completion.finish_reason not in ("stop", "length"):
        raise ValueError(f"turn {turn}: a completion that ended as {completion.finish_reason!r} cannot train")
    reason = interaction.sampling.not_trainable_reason()
    if reason is not None:
        raise ValueError(f"turn {turn}: it cannot train ({reason})")


def _versions(turn: int, interaction: Interaction) -> list[int]:
    versions: list[int] = []
    for span in interaction.completion.version_spans:
        if span.start != len(versions) or span.end < span.start:
            raise ValueError(f"turn {turn}: version span [{span.start}, {span.end}) does not follow token {len(versions)}")
        versions += [span.policy_version] * (span.end - span.start)
    if len(versions) != len(interaction.completion.token_ids):
        raise ValueError(f"turn {turn}: version spans cover {len(versions)} of {len(interaction.completion.token_ids)} tokens")
    return versions
