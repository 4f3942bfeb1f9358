"""How log lines look, as text or as JSON objects, and which request each belongs to. Owns the process's log handler and that context variable.

Every line of every library passes through the one handler set up here. Knows nothing of HTTP, nor of who asks.
"""

from __future__ import annotations

import logging
import os
import sys
from contextvars import ContextVar
from typing import Literal

from rich.console import Console

LogFormat = Literal["text", "json"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The request that is being answered. Tasks and threads that its handling starts (asyncio.to_thread too) carry it on."""

ACCESS = "uvicorn.access"
"""The logger of one line for each answered request."""
_WATCHING = ("/healthz", "/readyz", "/metrics")
"""Asked every few seconds by machines: only what is neither "yes" nor "not yet" is worth a line."""


def configure(log_format: LogFormat, console: Console | None = None) -> None:
    """Our own lines from INFO up, other packages' from WARNING up: as text on ``console`` (None: stderr), or one JSON object a line on stderr, with
    ``timestamp`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, and where there are any ``request_id`` and ``exception``."""
    if log_format == "json":
        handler = _json_handler()
        os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars between the lines, from converting a model for one
        logging.getLogger(ACCESS).setLevel(logging.INFO)
        logging.captureWarnings(True)
    else:
        handler = _text_handler(console or Console(stderr=True, highlight=False))
    handler.addFilter(_of_request)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("online_sao", "api"):
        logging.getLogger(name).setLevel(logging.INFO)


def is_json() -> bool:
    """Whether ``configure`` was last asked for JSON. Then nothing else should be written to the terminal."""
    return any(type(handler.formatter).__module__.startswith("pythonjsonlogger") for handler in logging.getLogger().handlers)


def _text_handler(console: Console) -> logging.Handler:
    from rich.logging import RichHandler

    handler = RichHandler(console=console, show_path=False)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s%(in_brackets)s", datefmt="%H:%M:%S"))
    return handler


def _json_handler() -> logging.Handler:
    from pythonjsonlogger.json import JsonFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_access_fields)
    handler.setFormatter(
        JsonFormatter(
            ["levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
            reserved_attrs=_NOT_FIELDS,
            timestamp=True,
        )
    )
    return handler


_NOT_FIELDS = (*vars(logging.makeLogRecord({})), "message", "asctime", "in_brackets", "color_message", "taskName")
"""What every record carries, and what uvicorn adds for coloured terminals."""


def _of_request(record: logging.LogRecord) -> bool:
    identity = request_id.get()
    record.in_brackets = "" if identity is None else f" [{identity}]"
    if identity is not None:
        record.request_id = identity
    return True


def _access_fields(record: logging.LogRecord) -> bool:
    """uvicorn's line as fields, without the query: it may name users or hold what was searched for."""
    if record.name != ACCESS or not isinstance(record.args, tuple) or len(record.args) != 5:
        return True
    client, method, target, _http_version, status = record.args
    path = str(target).partition("?")[0]
    record.client, record.method, record.path, record.status = client, method, path, status
    record.msg, record.args = "%s %s %s", (method, path, status)
    return path not in _WATCHING or status not in (200, 503)
