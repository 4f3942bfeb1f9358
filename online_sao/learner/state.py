"""Everything a learner is made of at one moment, in memory or in a folder. Owns the files of it and the check that they belong to this learner.

Files: ``policy.safetensors``, ``value.safetensors`` (adapter and head), ``training.pt`` (optimisers, explained-variance window, random state) and
``learner.json`` (what it was made with). Knows nothing of when a state is taken, nor of atomic writes or manifests.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from online_sao.algorithm.anchoring import BaseDistance
from online_sao.errors import ConfigurationError

POLICY_FILE = "policy.safetensors"
VALUE_FILE = "value.safetensors"
TRAINING_FILE = "training.pt"
IDENTITY_FILE = "learner.json"

ValueRecord = tuple[Tensor, Tensor]
"""(returns, values before the update) of one trajectory's action tokens."""


@dataclass(frozen=True, slots=True)
class LearnerIdentity:
    """What a state belongs to: its weights mean nothing on another base, at another rank, or in other projections."""

    base_digest: str
    lora_rank: int
    lora_alpha: int
    value_adapter: str = "mlp"  # states of before it was kept: it always was

    def require_same(self, other: LearnerIdentity, where: Path) -> None:
        """Raises ConfigurationError, saying what to do, if ``other`` (read from ``where``) is not of this learner."""
        advice = "or start again with an empty storage.data_dir (what was learned there is not carried over)."
        if other.base_digest != self.base_digest:
            raise ConfigurationError(
                f"The checkpoint in {where} was trained on another base model ({other.base_digest[:12]}…, this one is {self.base_digest[:12]}…). "
                f"Set policy.model back to that model, {advice}"
            )
        if (other.lora_rank, other.lora_alpha) != (self.lora_rank, self.lora_alpha):
            raise ConfigurationError(
                f"The checkpoint in {where} has LoRA rank {other.lora_rank} and alpha {other.lora_alpha}, the settings say rank {self.lora_rank} and "
                f"alpha {self.lora_alpha}. Set policy.lora_rank and policy.lora_alpha back, {advice}"
            )
        if other.value_adapter != self.value_adapter:
            theirs, ours = (_KINDS[identity.value_adapter] for identity in (other, self))
            raise ConfigurationError(
                f"The value model of the checkpoint in {where} {theirs}, the recipe's {ours}. "
                f"Set learning.recipe back to one whose value model {theirs}, {advice}"
            )

    @classmethod
    def read(cls, folder: Path) -> LearnerIdentity:
        kept: dict[str, Any] = json.loads((folder / IDENTITY_FILE).read_text(encoding="utf-8"))
        if "frozen_value_attention" in kept:  # as it was kept before a value model could do without an adapter
            kept["value_adapter"] = "mlp" if kept.pop("frozen_value_attention") else "all"
        return cls(**kept)


_KINDS = {"mlp": "has its attention frozen", "all": "has its attention trained", "none": "is linear in the base's states"}


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Owns its tensors: nothing in it is shared with a live model or optimiser."""

    policy: Mapping[str, Tensor]
    value: Mapping[str, Tensor]
    policy_optimizer: dict[str, Any]
    value_optimizer: dict[str, Any]
    window: tuple[ValueRecord, ...]
    updates: int
    distance: BaseDistance
    random_state: Tensor


def copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


@torch.no_grad()
def assign(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def copy_optimizer(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """None, of a value model that needs no optimiser: nothing."""
    if optimizer is None:
        return {}
    state = optimizer.state_dict()
    moments = {number: copy_tensors(tensors) for number, tensors in state["state"].items()}
    return {"state": moments, "param_groups": copy.deepcopy(state["param_groups"])}


def write(state: LearnerState, identity: LearnerIdentity, folder: Path) -> None:
    """Into an existing folder. Not atomic and not synced: see checkpoints.py."""
    save_file(dict(state.policy), folder / POLICY_FILE)
    save_file(dict(state.value), folder / VALUE_FILE)
    training = {
        "policy_optimizer": state.policy_optimizer,
        "value_optimizer": state.value_optimizer,
        "window": [list(record) for record in state.window],
        "updates": state.updates,
        "distance": [state.distance.latest, state.distance.farthest],
        "random_state": state.random_state,
    }
    torch.save(training, folder / TRAINING_FILE)
    (folder / IDENTITY_FILE).write_text(json.dumps(asdict(identity), indent=1), encoding="utf-8")


def read(folder: Path, identity: LearnerIdentity, value: Mapping[str, Tensor]) -> LearnerState:
    """Raises ConfigurationError if the folder belongs to another base model, rank, or kind of value model: one that is not made of what ``value``
    is."""
    identity.require_same(LearnerIdentity.read(folder), folder)
    saved = load_file(folder / VALUE_FILE)
    if {name: tensor.shape for name, tensor in saved.items()} != {name: tensor.shape for name, tensor in value.items()}:
        raise ConfigurationError(
            f"The value model of the checkpoint in {folder} is of another release, and this one's is made of other parts. Set learning.recipe to one "
            "with another value model, or start again with an empty storage.data_dir (what was learned there is not carried over)."
        )
    training = torch.load(folder / TRAINING_FILE, weights_only=True, map_location="cpu")
    return LearnerState(
        policy=load_file(folder / POLICY_FILE),
        value=saved,
        policy_optimizer=training["policy_optimizer"],
        value_optimizer=training["value_optimizer"],
        window=tuple((returns, values) for returns, values in training["window"]),
        updates=training["updates"],
        distance=BaseDistance(*training.get("distance", (training.get("kl_base", 0.0),) * 2)),  # states of before it was kept know the latest at most
        random_state=training["random_state"],
    )


def load_optimizer(optimizer: torch.optim.Optimizer | None, state: dict[str, Any]) -> None:
    """The moments of ``state`` under the settings that ``optimizer`` was made with: an operator who changed a learning rate and restarted means it,
    and so does a release that changed a preset. No gradient is left. None: nothing to load.

    Copied first, because load_state_dict keeps the very tensors it is given and the next step would write into them.
    """
    if optimizer is None:
        return
    settings = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(copy.deepcopy(state))
    for group, todays in zip(optimizer.param_groups, settings, strict=True):
        group.update(todays)
    optimizer.zero_grad(set_to_none=True)
