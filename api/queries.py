"""Query parameters that a route does not know: refused by name, so that a misspelt filter never returns everything. Knows nothing of any one
route."""

from __future__ import annotations

from difflib import get_close_matches

from fastapi import Request
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute

from online_sao.errors import InvalidRequestError

METHODS = ("GET", "HEAD", "DELETE")


async def only_known_parameters(request: Request) -> None:
    """A dependency of whole routers. Raises InvalidRequestError for the first parameter that the matched route does not declare.

    Not for the routes of OpenAI's own contract: their clients send parameters of other vendors along with every request (``api-version``, ``beta``),
    and there no parameter narrows what is answered.
    """
    route = request.scope.get("route")
    if request.method not in METHODS or not isinstance(route, APIRoute):
        return
    known = [field.alias for field in get_flat_dependant(route.dependant).query_params]
    for name in request.query_params:
        if name not in known:
            raise InvalidRequestError(f"Unknown query parameter {name[:80]!r}.{_hint(name, known)}", param=name[:80])


def _hint(name: str, known: list[str]) -> str:
    if not known:
        return " This route takes none."
    near = get_close_matches(name, known, n=1)
    return (f" Did you mean {near[0]!r}?" if near else "") + f" Known here: {', '.join(sorted(known))}."
