"""Starting the server from a terminal: socket, preparation, uvicorn, and what is printed. Owns their order; knows nothing of what is served.

The application itself is imported where it is needed: a port in use is said at once, not after the seconds that importing torch takes.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from typing import Any

import httpx
import uvicorn
from rich.console import Console

from online_sao.config import Settings
from online_sao.errors import ConfigurationError, OnlineSAOError


def launch(settings: Settings, console: Console) -> bool:
    """Prepare and serve until a signal (KeyboardInterrupt, after everything has ended). False if the server could not start; its log says why.

    Raises ConfigurationError where the operator has something to change.
    """
    from api.security import check_exposure

    check_exposure(settings.server)  # before anything slow is done for a server that may not be
    with _listening_socket(settings.server.host, settings.server.port) as listener:
        _prepare(settings, console)
        return _run_server(settings, console, listener)


def _listening_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket, taken before the slow part of the start. Raises ConfigurationError where the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(f"Port {port} on {host} is already in use. Stop what listens there, or choose another with --port.") from error
        raise ConfigurationError(f"Cannot listen on {host} port {port}: {error.strerror or error}. Set --host and --port.") from error
    return listener


def _prepare(settings: Settings, console: Console) -> None:
    """Everything a first start makes on the way: data folder, database schema, converted model."""
    try:
        settings.storage.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"The data folder {settings.storage.data_dir} cannot be made: {error.strerror}. Set --data-dir.") from error
    from online_sao.storage.migrations import upgrade

    with console.status("Preparing the database"):
        asyncio.run(upgrade(settings.database_url))
    with console.status(f"Preparing the model ({settings.policy.model}): converted once, then cached"):
        from online_sao.models.catalog import base_digest, obtain
        from online_sao.publishing.base_identity import BaseIdentity, require_same_base

        policy = settings.policy
        digest = base_digest(obtain(policy.model, policy.cache_dir.expanduser()))
        require_same_base(settings.storage.data_dir, BaseIdentity(policy.model, digest, policy.lora_rank, policy.lora_alpha))


class _LifespanGuard:
    """An ASGI application around the real one that keeps the error a start failed with, so that it can be told in one line."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.error: OnlineSAOError | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return

        held: list[dict[str, Any]] = []

        async def send_or_hold(message: dict[str, Any]) -> None:
            if message["type"] == "lifespan.startup.failed":
                held.append(message)  # it carries the traceback, and comes before the error itself
            else:
                await send(message)

        try:
            await self.app(scope, receive, send_or_hold)
        except OnlineSAOError as error:
            if not held:
                raise
            self.error = error
            await send({"type": "lifespan.startup.failed"})
        except BaseException:
            for message in held:
                await send(message)
            raise


class _Server(uvicorn.Server):
    """Lets running completions end, or tells their clients that they will not, before uvicorn cuts connections. The lifespan ends only after that."""

    def __init__(self, config: uvicorn.Config, app: Any) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.state.backend.drain()
        await super().shutdown(sockets)


def _run_server(settings: Settings, console: Console, listener: socket.socket) -> bool:
    """Serve until a signal; False if it never started. Raises KeyboardInterrupt after a clean end by signal, our own error of a start that failed."""
    from api.app import create_app

    app = create_app(settings)
    guard = _LifespanGuard(app)
    config = uvicorn.Config(
        guard,
        log_config=None,
        access_log=settings.server.log_format == "json",
        lifespan="on",
        timeout_graceful_shutdown=1,  # what is left then reads nothing any more: the completions have been drained
    )
    server = _Server(config, app)

    async def serve_and_announce() -> None:
        announcing = asyncio.create_task(_announce_when_ready(settings, console, listener.getsockname()[1]))
        try:
            await server.serve(sockets=[listener])
        finally:
            announcing.cancel()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        try:
            runner.run(serve_and_announce())
        except SystemExit:  # how uvicorn answers a start that failed
            if guard.error is not None:
                raise guard.error from None
            raise
        except OSError as error:  # bound by two processes at once, and the other one was first to listen
            if error.errno == errno.EADDRINUSE:
                raise ConfigurationError(f"Port {settings.server.port} is already in use. Choose another with --port.") from error
            raise
    return server.started


async def _announce_when_ready(settings: Settings, console: Console, port: int) -> None:
    """Wait for /readyz, then say where everything is."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.server.host, settings.server.host)
    url = f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}"
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        with console.status("Loading the model into the engine"):
            while True:
                try:
                    if (await client.get(f"{url}/readyz")).is_success:
                        break
                except httpx.HTTPError:
                    pass  # not listening yet
                await asyncio.sleep(0.25)
    token = ' -H "Authorization: Bearer $ONLINE_SAO_SERVER__API_TOKEN"' if settings.server.api_token else ""
    chat = json.dumps({"model": settings.policy.name, "max_tokens": 32, "messages": [{"role": "user", "content": "Tell me about your morning."}]})
    score = json.dumps({"completion_id": "PASTE-THE-ID-HERE", "value": 0.8})
    lines = [
        "[bold green]Ready.[/bold green]",
        f"  API        {url}/v1   (point an OpenAI client here)",
        f"  Dashboard  {url}/dashboard",
        f"  API docs   {url}/docs",
        "",
        "[dim]Chat:[/dim]",
        f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json'{token} -d '{chat}'",
        "[dim]Score the answer, by the id it came with:[/dim]",
        f"curl -s {url}/v1/feedback -H 'Content-Type: application/json'{token} -d '{score}'",
        "",
        "[dim]Ctrl-C ends everything.[/dim]",
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
