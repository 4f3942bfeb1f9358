"""Every setting, with its unit and default. Owns how settings are read: flags > environment (ONLINE_SAO_SERVER__PORT=…) > TOML file > default.

The file is ``online-sao.toml`` in the working directory, or the one ONLINE_SAO_CONFIG names. Each nested group is a TOML table of the same name.
Knows nothing of what the settings do; the components take the group that concerns them.
"""

from online_sao.config.engine import ClusterSettings, EngineSettings, PolicySettings
from online_sao.config.learning import ExplorationSettings, GateSettings, LearningSettings, RewardSettings
from online_sao.config.operation import AlarmSettings, EvaluationSettings, RetentionSettings
from online_sao.config.server import ServerSettings, StorageSettings
from online_sao.config.settings import Settings, setting_names, unknown_variables

__all__ = [
    "AlarmSettings",
    "ClusterSettings",
    "EngineSettings",
    "EvaluationSettings",
    "ExplorationSettings",
    "GateSettings",
    "LearningSettings",
    "PolicySettings",
    "RetentionSettings",
    "RewardSettings",
    "ServerSettings",
    "Settings",
    "StorageSettings",
    "setting_names",
    "unknown_variables",
]
