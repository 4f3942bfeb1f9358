"""What every group of settings is: a table of TOML, whose unknown names and infinite numbers are refused, and whose docstrings are its reference."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
