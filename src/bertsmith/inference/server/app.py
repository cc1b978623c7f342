"""The application: all routes, each also under /models/NAME, and every error in one shape."""

from __future__ import annotations

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import bertsmith
from bertsmith.inference.server.guard import Guard
from bertsmith.inference.server.refusals import Refusal, server_failed
from bertsmith.inference.server.routes.hugging_face import hugging_face_routes
from bertsmith.inference.server.routes.openai import openai_routes
from bertsmith.inference.server.routes.own import answers_route, info_route, probe_routes
from bertsmith.inference.server.routes.page import page_routes
from bertsmith.inference.server.routes.schemas import LONGEST_NAME, NAMED, complaint
from bertsmith.inference.server.routes.tei import tei_routes
from bertsmith.inference.server.service import Service
from bertsmith.rows.json_lines import RepeatedKey


def make_app(service: Service) -> Guard:
    """The ASGI application of a server."""
    # The pages that FastAPI makes of an OpenAPI load scripts from other servers.
    app = FastAPI(
        title="Bertsmith", version=bertsmith.__version__, docs_url=None, redoc_url=None,
        summary="BERT models behind HTTP.",
    )  # fmt: skip
    no_query = Depends(_check_no_query)
    for make in (tei_routes, answers_route, info_route):
        routes = make(service)
        app.include_router(routes, prefix="/models/{model}", dependencies=[NAMED, no_query])
        app.include_router(routes, dependencies=[no_query])
    for others in (hugging_face_routes(service), openai_routes(service)):
        app.include_router(others, dependencies=[no_query])
    # What probes and browsers ask for may have a query: nothing of the answer depends on it.
    for others in (probe_routes(service), page_routes()):
        app.include_router(others)
    app.router.redirect_slashes = False
    for kind in (Refusal, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refuse)
    return Guard(app, service)


async def _check_no_query(request: Request) -> None:
    """Raises Refusal (422) for a query parameter: no route reads any, and one that is ignored would look followed."""
    for name in request.query_params:
        fix = "put it into the body" if request.method == "POST" else "leave it out"
        raise Refusal(422, f"the query parameter '{name[:LONGEST_NAME]}' is not read; {fix}")


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        refusal = Refusal(422, complaint([{**each, "loc": each["loc"][1:]} for each in error.errors()]))
    elif isinstance(error, HTTPException):
        # 400 is FastAPI's for a body that it cannot parse at all, with the reason as the cause.
        status = 422 if error.status_code == 400 else error.status_code
        words = _unparsed(error.__cause__) if status == 422 else _WORDS.get(status, str(error.detail))
        refusal = Refusal(status, words, dict(error.headers or {}))
    else:  # an error of the server's own is raised again after this answer, and the guard logs it
        refusal = error if isinstance(error, Refusal) else server_failed()
    body = refusal.body(request.url.path)
    return Response(body, refusal.status, headers=refusal.headers, media_type="application/json")


_WORDS = {
    404: "there is no such route; /openapi.json lists those there are",
    405: "this route has another method; /openapi.json says which",
}


def _unparsed(cause: BaseException | None) -> str:
    """Why a body could not be parsed, where it is not for JSON's grammar."""
    if isinstance(cause, RepeatedKey):
        return f"an object of the body has the key '{str(cause)[:LONGEST_NAME]}' twice; give each key once"
    if isinstance(cause, RecursionError):
        return "the body has lists or objects nested too deeply; send it with fewer levels"
    if isinstance(cause, ValueError) and not isinstance(cause, UnicodeError):
        return "the body has a number with too many digits"  # Python limits those of a whole number
    return "the body is not JSON in UTF-8"
