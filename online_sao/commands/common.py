"""What every command shares: the terminal, the options that name settings and data, and how settings are read from flags.

Heavy packages are imported inside functions: ``--help`` stays instant.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from online_sao.errors import ConfigurationError
from online_sao.wording import did_you_mean

if TYPE_CHECKING:
    from online_sao.config import Settings

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML settings file. [default: online-sao.toml, where there is one]")]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Folder of database, policy store and checkpoints.")]


def load_settings(config: Path | None, **groups: dict[str, Any]) -> Settings:
    """Settings from flags > environment > file > defaults. A flag that is None is not a flag. Raises ConfigurationError, one line a fault."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from online_sao.config import Settings

    if config is not None:
        if not config.is_file():
            raise ConfigurationError(f"There is no settings file {config}. Give --config the path of a TOML file.")
        os.environ["ONLINE_SAO_CONFIG"] = str(config)
    given = {name: {key: value for key, value in group.items() if value is not None} for name, group in groups.items()}
    try:
        return Settings(**{name: group for name, group in given.items() if group})  # type: ignore[arg-type]
    except ValidationError as error:
        faults = "; ".join(_fault(".".join(map(str, fault["loc"])), fault["type"], fault["msg"]) for fault in error.errors())
        raise ConfigurationError(
            f"Settings: {faults.rstrip('.')}{'' if faults.endswith('?') else '.'} docs/configuration.md lists them all."
        ) from error
    except (SettingsError, ValueError) as error:
        raise ConfigurationError(f"Settings cannot be read: {error}") from error


def _fault(name: str, kind: str, message: str) -> str:
    if kind != "extra_forbidden":
        return f"{name or 'settings'}: {message}"
    from online_sao.config import setting_names

    known = setting_names()
    if "." in name:
        return f"there is no setting {name}.{did_you_mean(name, known)}"
    # A setting outside its table, or a table that is misspelt.
    inside = [setting for setting in known if setting.endswith(f".{name}")]
    hint = f" Did you mean {' or '.join(inside)}?" if inside else did_you_mean(name, {setting.partition(".")[0] for setting in known})
    return f"there is no group [{name}].{hint}"


def start_logging(settings: Settings) -> None:
    """In the form that server.log_format names, on stderr."""
    from online_sao import logs

    logs.configure(settings.server.log_format, errors)
