"""The policy as others know it: as published adapters, as the weights an engine serves, and as scores of given tokens. Owns the way between those
and the live parameters; knows no update, optimiser or version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from online_sao.errors import PolicyStoreError
from online_sao.learner.state import assign, copy_tensors
from online_sao.models.adapter import ADAPTER_WEIGHTS, MergedView, check_fits, read_adapter
from online_sao.models.backbone import Backbone
from online_sao.models.fingerprint import fingerprint
from online_sao.models.policy import PolicyModel, token_logprobs


class PublishedView:
    """``policy`` is that of ``backbone``. Where the base is divided among ranks, all of them must call ``score`` and ``served_digest`` together."""

    def __init__(self, backbone: Backbone, policy: PolicyModel) -> None:
        self._backbone = backbone
        self._policy = policy

    @torch.no_grad()
    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int], temperature: float) -> list[float]:
        """Log-probabilities of ``token_ids`` after ``prompt_ids`` (at least one) under the policy as it stands, at ``temperature``."""
        ids = torch.tensor([*prompt_ids, *token_ids], device=self._policy.device)
        everywhere = torch.arange(len(ids), device=ids.device)
        positions = everywhere[len(prompt_ids) :]
        logits = self._policy.logits(self._policy.states(ids, everywhere, torch.zeros_like(ids), positions - 1))
        temperatures = torch.full((len(positions),), temperature, device=ids.device)
        logprobs: list[float] = token_logprobs(logits, ids[positions], temperatures).tolist()
        return logprobs

    @torch.no_grad()
    def take(self, adapter_dir: Path | None) -> None:
        """Make the policy that of a published adapter (None: the base). Raises PolicyStoreError if it cannot be read or does not fit."""
        if adapter_dir is None:
            for name, parameter in self._policy.parameters().items():
                if ".lora_B." in name:
                    parameter.zero_()
            return
        adapter = read_adapter(adapter_dir)
        check_fits(self._backbone.pristine, adapter)
        for name, (a, b) in self._backbone.adapter("policy").matrices.items():
            if name not in adapter.matrices or adapter.matrices[name][0].shape != a.shape:
                raise PolicyStoreError(f"The adapter in {adapter_dir} was made with another LoRA rank: set policy.lora_rank back to it.")
            a.copy_(adapter.matrices[name][0])
            b.copy_(adapter.matrices[name][1])

    @contextmanager
    def standing_on(self, adapter_dir: Path | None) -> Iterator[None]:
        """Inside, the policy is what ``take`` makes it; afterwards, whatever happened, what it was."""
        parameters = self._policy.parameters()
        kept = copy_tensors(parameters)
        try:
            self.take(adapter_dir)
            yield
        finally:
            assign(parameters, kept)

    def served_digest(self) -> tuple[float, ...]:
        """Fingerprint of the weights an engine serves once it has merged this policy."""
        return fingerprint(MergedView(self._backbone.pristine, self._backbone.adapter("policy")))

    def export(self, folder: Path) -> None:
        """The policy as a PEFT adapter: adapter_model.safetensors and adapter_config.json, into an existing folder."""
        tensors = {}
        for name, (a, b) in self._backbone.adapter("policy").matrices.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = a.contiguous()
            tensors[f"base_model.model.{name}.lora_B.weight"] = b.contiguous()
        save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        self._backbone.lora_config("policy").save_pretrained(str(folder))
