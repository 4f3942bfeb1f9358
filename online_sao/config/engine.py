"""Settings of the policy that serves, of the engine it serves in, and of what Ray places."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from online_sao.config.group import Group


class PolicySettings(Group):
    name: str = "smollm2-135m"
    """The ``model`` name clients ask for."""
    model: str = "bundled"
    """``bundled`` (SmolLM2-135M-Instruct), or a local folder or hub id of a causal model with a chat template."""
    cache_dir: Path = Path("~/.cache/online-sao")
    """Folder where converted models are kept."""
    lora_rank: int = Field(16, gt=0)
    """Rank r of the policy's and the value model's LoRA adapters."""
    lora_alpha: int = Field(32, gt=0)
    """LoRA alpha; the adapter is scaled by alpha / rank."""

    def model_from_anywhere(self) -> str:
        """``model`` for a process in another working directory."""
        folder = Path(self.model).expanduser()
        return str(folder.absolute()) if self.model != "bundled" and folder.is_dir() else self.model


class EngineSettings(Group):
    kind: Literal["transformers", "vllm"] = "transformers"
    """Which inference engine serves: the embedded one, or vLLM (installed apart: docs/operations.md)."""
    publish: Literal["auto", "weights", "adapter"] = "auto"
    """How a new version gets into the engine. ``weights``: merged into the model at a token boundary, and running completions go on with it;
    ``adapter`` (vLLM only): beside the others, so that no answer pauses, running completions end on the version they began with, and clients may ask
    for ``name@vN``. ``auto``: ``adapter`` for vLLM on CUDA, else ``weights``, which decodes faster on a CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the weights being served. ``auto``: float32 on a CPU; with vLLM on CUDA the model's own."""
    adapter_slots: int = Field(4, ge=2)
    """Versions that can be in the engine at once with ``publish = "adapter"``. Where all are in use, a new one waits for the oldest completions."""
    threads: int = Field(0, ge=0)
    """Torch threads of the engine (of each replica). 0: all cores; replicas on this machine share them out."""
    max_concurrent: int = Field(16, gt=0)
    """Completions generated together in one batch; two of the service's own, which examine each version, may run beside them."""
    max_queue: int = Field(64, ge=0)
    """Completions waiting beyond ``max_concurrent`` before requests are answered 429."""
    max_context_tokens: int = Field(2048, gt=1)
    """Longest prompt plus completion, in tokens."""
    default_max_tokens: int = Field(256, gt=0)
    """Completion limit in tokens where the request names none."""
    kv_cache_tokens: int = Field(16_384, gt=0)
    """Size of the paged KV cache, in tokens over all running completions (46 KB a token for the bundled model in fp32)."""
    max_batch_tokens: int = Field(256, gt=0)
    """Tokens processed in one forward pass (prefill chunk plus decoding)."""
    kv_policy: Literal["keep", "recompute"] = "keep"
    """What happens to running completions' KV cache at a weight swap. ``keep``: no pause beyond the merge; ``recompute``: each is
    prefilled again with the new weights, so that its later logprobs equal a single-version forward pass."""


class ClusterSettings(Group):
    """What Ray places, on this machine or on a cluster: several engines that serve as one, the learner (extra ``ray``; docs/operations.md)."""

    replicas: int = Field(0, ge=0)
    """Engines, each a process of its own. 0: one engine inside the service, without Ray."""
    ray_address: str | None = None
    """Address of a running Ray cluster, host:port of its head. None: a cluster of this service's own, on this machine, that ends with it."""
    namespace: str = Field("online-sao", min_length=1)
    """Ray namespace of the actors. Services that share a cluster need one each."""
    replica_cpus: float = Field(1.0, ge=0)
    """CPUs a replica reserves in the cluster. How many it uses is engine.threads."""
    replica_gpus: float = Field(0.0, ge=0)
    """GPUs a replica reserves, and is shown."""

    place_learner: bool = False
    """Have the learner placed by Ray, and started again by it, instead of as a child process of the server."""
    learner_cpus: float = Field(1.0, ge=0)
    """CPUs that each rank of the learner reserves."""
    learner_gpus: float = Field(0.0, ge=0)
    """GPUs that each rank of the learner reserves, and is shown."""

    @property
    def uses_ray(self) -> bool:
        return self.replicas > 0 or self.place_learner

    @model_validator(mode="after")
    def _something_is_asked_for(self) -> ClusterSettings:
        if self.ray_address is not None and not self.uses_ray:
            raise ValueError(
                "cluster.ray_address is given, and nothing is to run there: say how many engines (--replicas), or set cluster.place_learner"
            )
        return self
