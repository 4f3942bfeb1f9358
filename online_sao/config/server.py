"""Settings of the server and of what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from online_sao.config.group import Group


class ServerSettings(Group):
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


class StorageSettings(Group):
    data_dir: Path = Path("data")
    """Folder of everything this service writes: database, policy store, checkpoints."""
    database_url: str | None = None
    """SQLAlchemy async URL. None: SQLite at data_dir/online_sao.db."""
    spool_bytes: int = Field(64_000_000, ge=0)
    """Most bytes of chats that are kept in data_dir/spool while the database is away; beyond that chats are answered 503. 0: they are at once."""
