"""docs/configuration.md, written from the settings themselves: ``python -m online_sao.settings_reference > docs/configuration.md``.

Owns the page's words around the tables; every setting's default and meaning are those of online_sao/config.
"""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from online_sao.config import Settings

_HEAD = """# Configuration

<!-- Written by `python -m online_sao.settings_reference > docs/configuration.md`. Change online_sao/config instead. -->

Every setting has a default, and `online-sao serve` needs none. A setting is read from the first of these that names it:

1. a flag, for the few that have one: `online-sao serve --help`;
2. an environment variable: `ONLINE_SAO_<GROUP>__<SETTING>`, such as `ONLINE_SAO_SERVER__PORT=9000` (two underscores between group and setting);
3. a TOML file: `online-sao.toml` in the working directory, or the one that `--config` or `ONLINE_SAO_CONFIG` names;
4. its default, below.

```toml
# online-sao.toml: each group is a table
[server]
port = 9000

[reward]
score_min = 1
score_max = 5

[learning]
anchor_coefficient = 0.05
```

Lists and tables are JSON in an environment variable: `ONLINE_SAO_REWARD__METRIC_WEIGHTS='{"score": 1, "resolved": 0.5}'`. A misspelt setting is an
error, never ignored. The learner process is started with exactly the settings of its server.
"""

_TITLES = {
    "server": "Server",
    "storage": "Storage",
    "policy": "Policy",
    "engine": "Inference engine",
    "cluster": "Several engines",
    "reward": "Scores and rewards",
    "learning": "Learning",
    "gates": "Gates",
    "exploration": "Exploration",
}
_BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def markdown() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, info in Settings.model_fields.items():
        group: Any = info.annotation
        parts.append(f"## {_TITLES.get(name, name.capitalize())}: `[{name}]`\n")
        # Without a docstring of its own, a subclass shows pydantic's.
        about = (vars(group).get("__doc__") or "").strip()
        if about:
            parts.append(" ".join(about.split()) + "\n")
        parts.append("| Setting | Values | Default | Meaning |\n|---|---|---|---|")
        parts.append("\n".join(_row(setting, field) for setting, field in group.model_fields.items()) + "\n")
    return "\n".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    meaning = " ".join((field.description or "").split()).replace("``", "`")
    cells = [f"`{name}`", _values(field), _default(field), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(field: FieldInfo) -> str:
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not type(None)]
    bounds = [
        f"{sign} {getattr(limit, attribute):g}" for limit in field.metadata for kind, (sign, attribute) in _BOUNDS.items() if isinstance(limit, kind)
    ]
    return ", ".join([" or ".join(map(_kind, kinds)), *bounds])


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "folder", SecretStr: "text, secret"}
    return names.get(annotation) or {tuple: "list of texts", dict: "table of numbers"}[get_origin(annotation)]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        raise TypeError("a group inside a group has no place on this page")
    return f"`{value}`" if isinstance(value, (str, Path)) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    print(markdown(), end="")
