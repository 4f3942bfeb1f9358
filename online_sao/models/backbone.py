"""One frozen base model under two LoRA adapters: "policy" and "value". Owns which weights may train and the packed forward pass.

The base is loaded once and never changes: without an adapter it is the reference of the anchor, under "policy" the policy, under "value" the body of
the value model. Knows nothing of losses, optimisers, trajectories or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, local
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel

from online_sao.models.adapter import Adapter, adapted_matrices
from online_sao.models.packed_attention import PACKED_ATTENTION, Blocks, find_blocks_of
from online_sao.models.projections import find_blocks, find_projections

AdapterName = Literal["policy", "value"]
ValueAdapter = Literal["mlp", "all", "none"]
_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class BaseViews:
    """What the frozen base makes of T tokens, each [T, H]: their embeddings, the states after two thirds of its blocks, and the final ones."""

    embedded: Tensor
    middle: Tensor
    final: Tensor

    @property
    def nbytes(self) -> int:
        return self.embedded.nbytes + self.middle.nbytes + self.final.nbytes

    def at(self, positions: Tensor) -> BaseViews:
        return BaseViews(self.embedded[positions], self.middle[positions], self.final[positions])


class Backbone:
    """A frozen causal model with its adapters. They start as the base itself (LoRA B is zero).

    ``base`` is used in place and frozen. ``seed`` fixes the initialisation of LoRA A; the global random state is left as it was.
    ``value_adapter``: where the value adapter has matrices: the "mlp" alone (attention is frozen, docs/design.md §5), "all"; "none": there is none.
    """

    def __init__(self, base: PreTrainedModel, *, lora_rank: int, lora_alpha: int, seed: int, value_adapter: ValueAdapter = "mlp") -> None:
        self.lora_rank, self.lora_alpha = lora_rank, lora_alpha
        base.eval().requires_grad_(False)
        # Before the adapters wrap them; shared with the model, not copied, because nothing here ever writes to them.
        self.pristine: dict[str, Tensor] = adapted_matrices(base)
        found = find_projections(base)
        self.value_adapter = value_adapter
        self._targets = {"policy": _last_parts(found.names), "value": _last_parts(found.mlp if value_adapter == "mlp" else found.names)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._peft: PeftModel = get_peft_model(base, self.lora_config("policy"), adapter_name="policy")
            if value_adapter != "none":
                self._peft.add_adapter("value", self.lora_config("value"))
        base.set_attn_implementation(PACKED_ATTENTION)
        self._causal_model = base
        self._noted = local()
        blocks = find_blocks(base.base_model)[1]
        blocks[max(0, len(blocks) * 2 // 3 - 1)].register_forward_hook(self._note_middle)
        self._active: AdapterName | None = None
        self._peft.base_model.disable_adapter_layers()
        self._inside = 0
        self._turn = Condition()
        # train() would switch dropout on; the policy that learns must be the policy that sampled.
        self._peft.eval()

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide the frozen blocks among the ranks of ``mesh`` (FSDP2): each rank keeps a part of every block and has a block whole only while it
        computes with it. From then on every forward pass, and every reading of ``pristine``, needs all ranks. Embeddings and output matrix stay whole
        on each rank, because they are used outside the blocks; so do the adapters, which are small, and are trained like any others."""
        body = self._causal_model.base_model
        adapters = {parameter for name, parameter in self._peft.named_parameters() if "lora_" in name}
        blocks = body.get_submodule(find_blocks(body)[0])
        for block in blocks.children():
            fully_shard(block, mesh=mesh, ignored_params=adapters)
        # The whole body too, though nothing is left for it to divide: it gives its blocks one common order of work.
        fully_shard(body, mesh=mesh, ignored_params=set(body.parameters()))
        self._read_pristine()

    def to(self, device: str) -> None:
        """Move all of it. Optimisers made before do not follow."""
        self._causal_model.to(device)
        self._read_pristine()

    def _read_pristine(self) -> None:
        self.pristine = {name: self._causal_model.get_submodule(name).base_layer.weight.detach() for name in self.pristine}

    @property
    def device(self) -> torch.device:
        device: torch.device = self._causal_model.device
        return device

    def lora_config(self, adapter: AdapterName) -> LoraConfig:
        return LoraConfig(r=self.lora_rank, lora_alpha=self.lora_alpha, lora_dropout=0.0, bias="none", target_modules=self._targets[adapter])

    @property
    def hidden_size(self) -> int:
        return int(self._causal_model.config.hidden_size)

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: every token id is below it."""
        return int(self._causal_model.get_input_embeddings().num_embeddings)

    @property
    def module(self) -> nn.Module:
        """The whole wrapped module, for reading weights by name."""
        module: nn.Module = self._peft
        return module

    def adapter_parameters(self, adapter: AdapterName) -> dict[str, nn.Parameter]:
        """The LoRA parameters of one adapter by name, in a fixed order, whether it is active or not."""
        mark = f".{adapter}."
        return {name: parameter for name, parameter in self._peft.named_parameters() if "lora_" in name and mark in name}

    def adapter(self, adapter: AdapterName) -> Adapter:
        """One adapter as its matrices, by the module paths of the base model. The tensors are the live ones, detached."""
        halves: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self.adapter_parameters(adapter).items():
            path, _, half = name.removeprefix(_PREFIX).removesuffix(f".{adapter}.weight").rpartition(".lora_")
            halves.setdefault(path, {})[half] = parameter.detach()
        return Adapter({path: (pair["A"], pair["B"]) for path, pair in halves.items()}, self.lora_alpha / self.lora_rank)

    def hidden(self, adapter: AdapterName | None, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """Final hidden states [T, H] of one packed row (experience.batching): a token sees earlier ones of segment 0 and of its own segment.

        ``adapter`` None is the base model. Never with a cache: transformers would take the positions for a continuation of it. Threads may call
        it side by side; who wants gradients of it stays ``under`` the adapter until the backward pass is through.
        """
        blocks = find_blocks_of(segment_ids)
        with self.under(adapter):
            output = self._causal_model.base_model(
                input_ids=input_ids.unsqueeze(0),
                position_ids=position_ids.unsqueeze(0),
                attention_mask=self._attention_mask(position_ids, segment_ids, blocks),
                blocks=blocks,
                use_cache=False,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def base_views(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor) -> BaseViews:
        """Of the base, in one forward pass, as ``hidden``."""
        self._noted.middle = []
        try:
            final = self.hidden(None, input_ids, position_ids, segment_ids)
            (middle,) = self._noted.middle
        finally:
            del self._noted.middle  # nothing of a pass is held on to, its graph least of all
        embedded: Tensor = self._causal_model.get_input_embeddings()(input_ids)
        return BaseViews(embedded, middle[0], final)

    def _note_middle(self, block: nn.Module, arguments: Any, output: Any) -> None:
        """A forward hook. Not transformers' output_hidden_states, which knows models by their class and overlooks one that FSDP has changed."""
        if (noted := getattr(self._noted, "middle", None)) is not None:
            noted.append(output[0] if isinstance(output, tuple) else output)

    def _attention_mask(self, position_ids: Tensor, segment_ids: Tensor, blocks: Blocks | None) -> Tensor | dict[str, Tensor]:
        """[1, 1, T, T] bool, True where the row may look at the column, or the same for ``blocks``; by kind of layer where the model has more than
        one."""
        order = torch.arange(len(segment_ids), device=segment_ids.device)
        mask = (order[:, None] >= order) & ((segment_ids == 0) | (segment_ids[:, None] == segment_ids))
        config = self._causal_model.config
        window = getattr(config, "sliding_window", None)
        near = mask if window is None else mask & (position_ids[:, None] - position_ids < window)
        kinds = set(getattr(config, "layer_types", None) or ())
        if len(kinds) > 1 or "sliding_attention" in kinds:
            return {"full_attention": _for_attention(mask, blocks), "sliding_attention": _for_attention(near, blocks)}
        return _for_attention(mask if kinds else near, blocks)

    def head(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits [N, V] of hidden states [N, H]. The output matrix is by far the largest: give it only the positions needed."""
        logits: Tensor = self._causal_model.get_output_embeddings()(hidden)
        return logits

    @contextmanager
    def under(self, adapter: AdapterName | None) -> Iterator[None]:
        """Inside, ``adapter`` is the active one and its parameters alone require gradients. That is one switch for the whole module: threads that
        want the same compute side by side, and who wants another waits until none is left inside. Nested, only of the same."""
        with self._turn:
            self._turn.wait_for(lambda: adapter == self._active or not self._inside)
            self._activate(adapter)
            self._inside += 1
        try:
            yield
        finally:
            with self._turn:
                self._inside -= 1
                self._turn.notify_all()

    def _activate(self, adapter: AdapterName | None) -> None:
        if adapter == self._active:
            return
        if adapter is None:
            self._peft.base_model.disable_adapter_layers()
        else:
            self._peft.base_model.enable_adapter_layers()
            # Also the only place where requires_grad moves: the active adapter's parameters, and no others, take part in a backward pass.
            self._peft.set_adapter(adapter)
        self._active = adapter


def _last_parts(names: tuple[str, ...]) -> list[str]:
    return sorted({name.rpartition(".")[2] for name in names})


def _for_attention(mask: Tensor, blocks: Blocks | None) -> Tensor:
    return mask[None, None] if blocks is None else blocks.mask(mask)
