"""All settings together: how they are read and checked, and as environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from online_sao.config.engine import ClusterSettings, EngineSettings, PolicySettings
from online_sao.config.learning import ExplorationSettings, GateSettings, LearningSettings, RewardSettings
from online_sao.config.operation import AlarmSettings, EvaluationSettings, RetentionSettings
from online_sao.config.server import ServerSettings, StorageSettings
from online_sao.wording import did_you_mean


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
