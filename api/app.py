"""The application: routes, middleware and the serving process behind them. The only importer of runtime.serving.

Middleware, from the outside: RequestContext (x-request-id, the last net), counting for /metrics, Cors, Security (who may call), then the routes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

import api.errors
import api.openapi
from api.admin import alarms, control, evaluations, health, history, metrics, scores
from api.dashboard.mount import mount
from api.errors import RequestContext
from api.queries import only_known_parameters
from api.security import Cors, Security, check_exposure
from api.v1 import chat, feedback, interactions, models
from online_sao import __version__
from online_sao.config import Settings
from online_sao.runtime.serving import Serving


def create_app(settings: Settings) -> FastAPI:
    """The ASGI application. Its lifespan starts and stops everything. Raises ConfigurationError where it would be open to others without a token.

    The database must have the current schema (online_sao.storage.migrations.upgrade).
    """
    check_exposure(settings.server)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        serving = Serving(settings)
        app.state.backend = serving
        metrics.share_reading(app, serving)
        await serving.start()
        try:
            yield
        finally:
            await serving.stop()

    # The stock docs page loads its scripts from a public host; this one brings them, as all pages here do.
    app = FastAPIOffline(
        title="Online SAO", version=__version__, lifespan=lifespan, redoc_url=None, generate_unique_id_function=lambda route: str(route.name)
    )
    api.errors.install(app)
    # Looked through from the first on for every request: what is asked for most comes first.
    for ours in (feedback.router, interactions.router):
        app.include_router(ours, prefix="/v1", dependencies=[Depends(only_known_parameters)])
    for openai in (chat.router, models.router):
        app.include_router(openai, prefix="/v1")
    app.include_router(health.router)
    app.include_router(metrics.router)
    for admin in (control.router, alarms.router, evaluations.router, history.router, scores.router):
        app.include_router(admin, prefix="/admin", dependencies=[Depends(only_known_parameters)])
    api.openapi.install(app, settings.policy.name)
    # A person who types the bare address wants to see something.
    app.add_api_route("/", lambda: RedirectResponse("/dashboard"), include_in_schema=False)
    mount(app, lambda: getattr(app.state, "backend", None))
    app.add_middleware(Security, settings=settings.server)
    app.add_middleware(Cors, origins=settings.server.cors_origins)
    metrics.count_requests(app)
    app.add_middleware(RequestContext)
    return app
