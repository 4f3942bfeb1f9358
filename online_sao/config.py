"""Every setting, with its unit and default. Owns how settings are read: flags > environment (ONLINE_SAO_SERVER__PORT=…) > TOML file > default.

The file is ``online-sao.toml`` in the working directory, or the one ONLINE_SAO_CONFIG names. Each nested group is a TOML table of the same name.
Knows nothing of what the settings do; the components take the group that concerns them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from online_sao.wording import did_you_mean


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ServerSettings(_Group):
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs ``api_token``."""
    port: int = Field(8000, ge=0, le=65535)
    """TCP port."""
    api_token: SecretStr | None = None
    """Bearer token that every /v1, /admin and /metrics request must carry. None: no token, loopback only."""
    allowed_hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    """Host header values (without port) accepted when no token is set: keeps a web page from driving a local server."""
    cors_origins: tuple[str, ...] = ()
    """Origins (``https://app.example.com``) whose web pages may use /v1 from a browser. ``*`` means any, and needs an ``api_token``."""
    max_body_bytes: int = Field(4_000_000, gt=0)
    """Largest request body in bytes; larger ones are answered 413."""
    shared: bool = False
    """Serve beside other server processes on one PostgreSQL database: one of them, by a lease there, also runs jobs, activation and the learner."""
    shutdown_grace_seconds: float = Field(5.0, gt=0)
    """Seconds running requests are given to end at shutdown before they are abandoned."""
    log_format: Literal["text", "json"] = "text"
    """How server and learner write their log: ``text`` for a terminal, or ``json``: one object a line, and a line for each request."""


class StorageSettings(_Group):
    data_dir: Path = Path("data")
    """Folder of everything this service writes: database, policy store, checkpoints."""
    database_url: str | None = None
    """SQLAlchemy async URL. None: SQLite at data_dir/online_sao.db."""
    spool_bytes: int = Field(64_000_000, ge=0)
    """Most bytes of chats that are kept in data_dir/spool while the database is away; beyond that chats are answered 503. 0: they are at once."""


class PolicySettings(_Group):
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


class EngineSettings(_Group):
    kind: Literal["transformers", "vllm"] = "transformers"
    """Which inference engine serves: the embedded one, or vLLM (installed apart: docs/operations.md)."""
    publish: Literal["auto", "weights", "adapter"] = "auto"
    """How a new version gets into the engine. ``weights``: merged into the model at a token boundary, and running completions go on with it;
    ``adapter`` (vLLM only): beside the others, so that nothing pauses, running completions end on the version they began with, and clients may ask
    for ``name@vN``. ``auto``: ``adapter`` for vLLM on CUDA, else ``weights``, which decodes faster on a CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the weights being served. ``auto``: float32 on a CPU; with vLLM on CUDA the model's own."""
    adapter_slots: int = Field(4, ge=2)
    """Versions that can be in the engine at once with ``publish = "adapter"``. Where all are in use, a new one waits for the oldest completions."""
    threads: int = Field(0, ge=0)
    """Torch threads of the engine (of each replica). 0: all cores; replicas on this machine share them out."""
    max_concurrent: int = Field(16, gt=0)
    """Completions generated together in one batch."""
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


class ClusterSettings(_Group):
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


class RewardSettings(_Group):
    score_min: float = 0.0
    """Lowest score a client may send; mapped to reward −1."""
    score_max: float = 1.0
    """Highest score a client may send; mapped to reward +1."""
    metric_weights: dict[str, float] = Field(default_factory=lambda: {"score": 1.0})
    """Weight of each metric in the reward. Metrics not named weigh 0."""
    score_deadline_seconds: float = Field(24 * 3600.0, gt=0)
    """Seconds a completion waits for its score before it expires (or takes ``default_score``)."""
    default_score: float | None = None
    """Score given at the deadline to completions nobody scored. None: they expire untrained."""

    @model_validator(mode="after")
    def _range(self) -> RewardSettings:
        if not self.score_min < self.score_max:
            raise ValueError(f"reward.score_min ({self.score_min}) must be below reward.score_max ({self.score_max})")
        if self.default_score is not None and not self.score_min <= self.default_score <= self.score_max:
            raise ValueError(f"reward.default_score ({self.default_score}) must be from {self.score_min:g} to {self.score_max:g}")
        return self


class LearningSettings(_Group):
    """None means: what the preset says (algorithm/recipes.py)."""

    enabled: bool = True
    """Whether anything learns. False: scores are kept, and no learner is started or missed."""
    placement: Literal["child", "separate"] = "child"
    """Who keeps the learner running: the server, as its ``child``; or somebody else, by ``online-sao learn`` on the same database and data_dir."""
    recipe: Literal["sao", "running-mean"] = "sao"
    """Which algorithm (algorithm/recipes.py): ``sao``, or ``running-mean``, which has no value model: the baseline to measure against."""
    preset: Literal["live", "paper"] = "live"
    """Which column of numbers: ``live`` (measured for small live traffic) or ``paper`` (arXiv 2607.07508)."""
    threads: int = Field(0, ge=0)
    """Torch threads of the learner. 0: all cores."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the learner computes. With ``cuda`` every rank takes a GPU of its own, and gradients meet over NCCL."""
    ranks: int = Field(1, ge=1)
    """Processes that make each update together, each on its share of the batch (docs/operations.md)."""
    sharding: Literal["none", "fsdp"] = "none"
    """``none``: every rank holds the whole base model. ``fsdp``: its blocks are divided among the ranks, for models that do not fit one device."""
    rank_timeout_seconds: float = Field(300.0, gt=0)
    """Longest time a rank waits for another before it gives the learner up, to be started again. A rank whose process died is missed at once."""
    niceness: int = Field(5, ge=0, le=19)
    """Unix niceness of the learner, so that serving goes first where they share cores."""
    batch_size: int | None = Field(None, gt=0)
    """Trajectories in one update."""
    max_batch_age_seconds: float = Field(120.0, gt=0)
    """A smaller batch is taken once its oldest trajectory has waited this many seconds …"""
    min_batch_size: int = Field(4, gt=0)
    """… and it holds at least this many trajectories."""
    microbatch_tokens: int = Field(512, gt=0)
    """Most tokens packed into one forward pass. Longer trajectories get a pass of their own."""
    policy_learning_rate: float | None = Field(None, gt=0)
    """AdamW learning rate of the policy's adapter."""
    value_learning_rate: float | None = Field(None, gt=0)
    """AdamW learning rate of the value model's adapter and head."""
    value_updates: int | None = Field(None, ge=0)
    """K: value updates before each policy update."""
    value_warmup_updates: int | None = Field(None, ge=0)
    """Value-only updates on the first batch, before the policy first moves."""
    value_pretraining_min_scores: int = Field(64, ge=0)
    """A value model that has learned nothing yet is first trained on logged scored interactions, where there are this many. 0: never."""
    value_pretraining_max_scores: int = Field(512, ge=2)
    """Newest scored interactions that value pretraining looks at."""
    epsilon_low: float | None = Field(None, gt=0)
    """Lower width of the DIS band: a token is trained where 1 − epsilon_low < ratio < 1 + epsilon_high."""
    epsilon_high: float | None = Field(None, gt=0)
    """Upper width of the DIS band."""
    anchor_coefficient: float | None = Field(None, ge=0)
    """β of the KL(current ‖ base) anchor. 0: no anchor."""
    anchor_gain: float | None = Field(None, ge=0)
    """How much stronger the anchor gets for every unit of reward (its range is 2) that was lost lately."""
    anchor_reach: float | None = Field(None, gt=0)
    """KL to the base, in nats a token, from which anchor_gain acts in full; nearer to the base it fades with the square."""
    max_policy_lag: int | None = Field(None, ge=0)
    """Updates between a trajectory's oldest token and its use, above which it expires."""
    lease_seconds: float = Field(600.0, gt=0)
    """A claimed batch returns to the queue when its learner has not renewed the claim for this long."""
    poll_seconds: float = Field(0.5, gt=0)
    """Seconds between two looks at the database while waiting."""
    keep_checkpoints: int = Field(5, ge=2)
    """Newest checkpoints kept on disk."""
    tensorboard: bool = True
    """Write every update's metrics as TensorBoard files under data_dir/tensorboard (a few kilobytes an update)."""
    seed: int = 0
    """Seed of adapter initialisation and of the learner's random state."""

    @model_validator(mode="after")
    def _ranks(self) -> LearningSettings:
        if self.sharding != "none" and self.ranks == 1:
            raise ValueError('learning.sharding = "fsdp" divides the model among learning.ranks processes: set learning.ranks above 1')
        return self

    @property
    def as_child(self) -> bool:
        """Whether the server starts a learner."""
        return self.enabled and self.placement == "child"


class GateSettings(_Group):
    """An update outside any of these is discarded and its trajectories are rejected."""

    max_masked_fraction: float = Field(0.9, gt=0, le=1)
    """Largest fraction of action tokens DIS may mask."""
    max_kl_base: float = Field(1.0, gt=0)
    """Largest mean KL(current ‖ base), in nats a token."""
    min_entropy: float = Field(0.05, ge=0)
    """Smallest mean entropy of the policy, in nats a token."""
    max_grad_norm: float = Field(1000.0, gt=0)
    """Largest policy gradient norm before clipping."""


class RetentionSettings(_Group):
    """What is removed by itself. The base model, the version that serves, what the learner stands on, and whatever is newer than either are kept."""

    keep_versions: int = Field(20, ge=2)
    """Newest policy versions whose files stay in the policy store: how far one can roll back."""
    keep_every: int = Field(10, ge=0)
    """Of the older ones, the files of every version whose number this divides stay too. 0: of none."""
    interactions_days: float | None = Field(None, gt=0)
    """Days after which a logged interaction loses its texts and tokens, as if erased (counts and scores stay). None: never."""


class ExplorationSettings(_Group):
    """Lets clients that always send temperature 0 or top_p < 1 take part in learning, openly: the response's ``online_sao`` field and the
    logged interaction name the parameters really used."""

    neutralise_sampling: bool = False
    """Replace top_p by 1 and temperature 0 by ``temperature``."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Temperature used in place of 0."""


class EvaluationSettings(_Group):
    """Fixed prompts and a fixed text, answered and predicted by the served version: whether it is still able, beside whether it is liked."""

    enabled: bool = True
    """Evaluate versions, in the background, while the engine has room."""
    min_interval_seconds: float = Field(60.0, ge=0)
    """Seconds from one evaluation to the next. Where versions come faster, the newest is evaluated and those between are skipped."""


class AlarmSettings(_Group):
    """Bounds beyond which an alarm is raised; it clears when its condition is gone."""

    poll_seconds: float = Field(5.0, gt=0)
    """Seconds between two looks at all conditions."""
    score_drop_min_scores: int = Field(16, ge=2)
    """Scores on each side before the newest versions are compared with those before them."""
    score_drop_errors: float = Field(3.0, gt=0)
    """k: the mean score fell if the fall exceeds k standard errors of the difference (Welch) …"""
    score_drop_minimum: float = Field(0.1, ge=0)
    """… and this many points of score."""
    auto_rollback: bool = False
    """Roll back to the version before, by itself, when the score_drop alarm is raised."""
    auto_rollback_resume: bool = False
    """Let the learner go on after an automatic rollback. False: it stays paused until a person resumes it."""
    length_collapse: float = Field(0.33, gt=0, lt=1)
    """Mean answer length as a fraction of the base's, at or below which it has collapsed."""
    length_explosion: float = Field(3.0, gt=1)
    """Mean answer length as a multiple of the base's, at or above which it has exploded."""
    distinct_2_fraction: float = Field(0.7, gt=0, le=1)
    """Smallest distinct-2 on the fixed prompts, as a fraction of the base's."""
    perplexity_factor: float = Field(1.5, gt=1)
    """Largest perplexity of the fixed text, as a multiple of the base's."""
    kl_base: float = Field(0.5, gt=0)
    """Largest KL(current ‖ base) of an update, in nats a token. Below the gate's bound, so that it warns first."""
    learner_silent_seconds: float = Field(60.0, gt=0)
    """Longest time without a sign of life from a learner that should run, in seconds."""
    disk_free_megabytes: float = Field(500.0, gt=0)
    """Least free space on the disk of the data folder, in MB."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ONLINE_SAO_", env_nested_delimiter="__", extra="forbid", use_attribute_docstrings=True)

    server: ServerSettings = Field(default_factory=ServerSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    policy: PolicySettings = Field(default_factory=PolicySettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    reward: RewardSettings = Field(default_factory=RewardSettings)
    learning: LearningSettings = Field(default_factory=LearningSettings)
    gates: GateSettings = Field(default_factory=GateSettings)
    exploration: ExplorationSettings = Field(default_factory=ExplorationSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    alarms: AlarmSettings = Field(default_factory=AlarmSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = Path(os.environ.get("ONLINE_SAO_CONFIG", "online-sao.toml"))
        if "ONLINE_SAO_CONFIG" in os.environ and not path.is_file():
            raise ValueError(f"ONLINE_SAO_CONFIG names {path}, and there is no such file")
        unknown = unknown_variables(os.environ)
        if unknown:
            hint = did_you_mean(unknown[0], (f"ONLINE_SAO_{name.replace('.', '__')}".upper() for name in setting_names()))
            raise ValueError(
                f"{unknown[0]} is no setting: variables are named ONLINE_SAO_GROUP__NAME, groups are {', '.join(settings_cls.model_fields)}.{hint}"
            )
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=path)

    @model_validator(mode="after")
    def _shared_database(self) -> Settings:
        if self.server.shared and not self.database_url.startswith("postgresql"):
            raise ValueError("server.shared needs a PostgreSQL database that all the servers reach: set storage.database_url, or serve without it")
        return self

    @property
    def database_url(self) -> str:
        return self.storage.database_url or f"sqlite+aiosqlite:///{self.storage.data_dir.absolute() / 'online_sao.db'}"

    @property
    def policy_store_dir(self) -> Path:
        return self.storage.data_dir.absolute() / "policy_store"

    @property
    def spool_dir(self) -> Path:
        return self.storage.data_dir.absolute() / "spool"

    @property
    def checkpoints_dir(self) -> Path:
        return self.storage.data_dir.absolute() / "checkpoints"

    @property
    def tensorboard_dir(self) -> Path:
        return self.storage.data_dir.absolute() / "tensorboard"

    def to_environment(self) -> dict[str, str]:
        """These settings as environment variables, so that a child process reads exactly the same ones, whatever its working directory."""
        environment: dict[str, str] = {}
        for group_name in type(self).model_fields:
            group: BaseModel = getattr(self, group_name)
            for name in type(group).model_fields:
                value: Any = getattr(group, name)
                if value is None:
                    continue
                if isinstance(value, SecretStr):
                    text = value.get_secret_value()
                elif isinstance(value, (tuple, dict)):
                    text = json.dumps(value)
                elif name == "data_dir":
                    text = str(value.absolute())
                elif group is self.policy and name == "model":
                    text = self.policy.model_from_anywhere()
                else:
                    text = str(value)
                environment[f"ONLINE_SAO_{group_name}__{name}".upper()] = text
        return environment


def setting_names() -> list[str]:
    """Every setting, as group.name."""
    groups = {group: field.annotation for group, field in Settings.model_fields.items()}
    return [f"{group}.{name}" for group, model in groups.items() if isinstance(model, type) for name in getattr(model, "model_fields", ())]


_OTHER_VARIABLES = {"ONLINE_SAO_CONFIG", "ONLINE_SAO_SUPERVISOR_PID"}


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and set nothing. A misspelt name inside a group is found by the group itself."""
    prefixes = tuple(f"ONLINE_SAO_{group}__".upper() for group in Settings.model_fields)
    ours = [name for name in environment if name.upper().startswith("ONLINE_SAO_")]
    return sorted(name for name in ours if name.upper() not in _OTHER_VARIABLES and not name.upper().startswith(prefixes))
