"""The HTTP surface: endpoints, and errors as problem+json."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.routing import APIRoute
from pydantic_core import ValidationError, to_json
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from simrec import __version__
from simrec.errors import InputError
from simrec.scoring.threads import processors
from simrec.serve import requests
from simrec.serve.guard import Guard, problem
from simrec.serve.service import Service, Settings
from simrec.storage.files import is_full_disk

logger = logging.getLogger(__name__)

ENVIRONMENT = "SIMREC_SERVE"
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of glibc's mallopt
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def create_app(settings: Settings) -> Any:
    """Return the application of a service: ASGI, for uvicorn or a test."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    errors = {status: {"description": text} for status, text in _ERRORS.items()}
    app = FastAPI(
        title="SimRec",
        version=__version__,
        lifespan=lifespan,
        redoc_url=None,
        responses=errors,  # type: ignore[arg-type]
        docs_url=None,
    )
    app.state.service = service
    _add_errors(app)
    _add_answers(app, service)
    _add_operations(app, service)
    if settings.studio:
        _add_studio(app, service)
    return Guard(app, settings)


_ERRORS = {
    400: "What was asked cannot be answered; the message names what to change",
    401: "No key, or a wrong one",
    404: "No such page",
    405: "Another method is needed",
    408: "The request did not arrive in time",
    413: "The request is too large",
    415: "The request is not JSON",
    421: "The service has another name",
    422: "The request is not as its schema says",
    429: "Too many requests",
    507: "The disk is full: what was sent is not stored",
}


def _add_errors(app: FastAPI) -> None:
    """Answer errors as problem+json, with the library's messages and no traceback."""

    @app.exception_handler(InputError)
    async def bad_input(request: Request, error: InputError) -> Response:
        return problem(400, "Bad input", str(error).replace(" (Arrow table)", ""))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(map(str, first.get("loc", ()))) or "the request"
        said = str(first.get("msg")).replace("valid array", "list")
        said = said.replace("valid integer", "whole number")
        return problem(422, "Invalid request", f"{where}: {said}")

    @app.exception_handler(AnyHTTPException)
    async def http(request: Request, error: AnyHTTPException) -> Response:
        return problem(error.status_code, "HTTP error", str(error.detail))

    @app.exception_handler(RecursionError)
    @app.exception_handler(UnicodeError)
    async def unreadable(request: Request, error: Exception) -> Response:
        return problem(400, "Bad input", "The request has text or nesting that cannot be read.")

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> Response:
        if is_full_disk(error) or "disk is full" in str(error):
            return problem(507, "Disk full", "The disk is full: what was sent is not stored.")
        return await unexpected(request, error)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("%s failed", request.url.path, exc_info=error)
        return problem(500, "Internal error", "It failed; the log of the service says why.")


class _Route(APIRoute):
    """A route whose body becomes a request in one step; FastAPI only describes it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers."""
        validate = self.endpoint.__annotations__["request"].__pydantic_validator__.validate_json

        async def handle(http: Request) -> Response:
            try:
                body = await http.body()
            except ClientDisconnect:
                raise HTTPException(400, "The request was cut off.") from None
            kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":  # what a page elsewhere may send without being asked
                raise HTTPException(415, "A request has Content-Type: application/json.")
            try:
                request = validate(body)
            except ValidationError as error:
                raise RequestValidationError(error.errors(include_url=False)) from None
            return await self.endpoint(request)

        return handle


def _add_answers(app: FastAPI, service: Service) -> None:
    """Add the endpoints that answer; quick ones at once, long ones and writers in threads.

    Long ones wait for each other: side by side each would hold memory, and none would be sooner.
    """
    long, writers = ThreadPoolExecutor(processors()), ThreadPoolExecutor(4)

    def add(path: str, kind: type[requests.Request], summary: str) -> None:
        name = path[1:]
        own = getattr(service, name, None)  # what changes something, or is logged

        async def answer(request: Any) -> Response:
            work = own or getattr(service.engine(request.model), name)
            quick = name in ("score", "history") or getattr(request, "sample", None) is False
            if quick:
                found = work(request)
            else:
                found = await _in(writers if own else long, work, request)
            return Response(to_json(found), media_type="application/json")

        answer.__name__ = name
        answer.__annotations__ = {"request": kind}
        app.router.add_api_route(
            path,
            answer,
            methods=["POST"],
            summary=summary,
            response_model=dict[str, Any],
            route_class_override=_Route,
        )

    add("/recommend", requests.Recommend, "A list for a user: known, new, or with a few ratings")
    add("/score", requests.Score, "Predicted ratings of items")
    add("/similar", requests.Similar, "Neighbours of an item or a user")
    add("/explain", requests.Explain, "What adds how much to a score")
    add("/embed", requests.Embed, "Vectors whose scalar product is the score")
    add("/audience", requests.Audience, "The users for whom an item adds most")
    add("/ask", requests.Ask, "The items whose ratings would tell most of a user")
    add("/history", requests.History, "What a user has rated")
    add("/items", requests.Entities, "New items with features, rankable at once")
    add("/users", requests.Entities, "New users with features")
    add("/feedback", requests.Feedback, "Ratings and events, on disk when answered")


async def _in(pool: ThreadPoolExecutor, work: Callable[..., Any], *given: Any) -> Any:
    """Work in a thread of a pool."""
    return await asyncio.get_running_loop().run_in_executor(pool, work, *given)


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", summary="The process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="A model is loaded")
    async def readyz() -> dict[str, Any]:
        models = {name: engine.model.model_id_ for name, engine in service.engines.items()}
        return {"status": "ready", "models": models}

    @app.get("/metrics", summary="Counts and times", response_class=PlainTextResponse)
    async def metrics(request: Request) -> str:
        return request.scope["guard"].text(service)

    @app.get("/schema", summary="Columns, counts and choices of the models")
    async def schema() -> dict[str, Any]:
        return service.schema()


def _add_studio(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        text = resources.files("simrec.serve").joinpath("page/studio.html").read_text("utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY})

    pool = ThreadPoolExecutor(1)

    @app.get("/studio/map", include_in_schema=False)
    async def item_map(model: str = "a", colour: str = "") -> dict[str, Any]:
        return await _in(pool, service.engine(model).map, colour)

    @app.get("/studio/search", include_in_schema=False)
    async def search(text: str, model: str = "a") -> dict[str, Any]:
        return {"items": await _in(pool, service.engine(model).search, text[:100])}

    @app.get("/studio/figures", include_in_schema=False)
    async def figures() -> Any:
        if not service.settings.figures:
            return None
        with open(service.settings.figures, encoding="utf-8") as file:
            return json.load(file)


def from_environment() -> Any:
    """Return the application that `run` has described in the environment of its workers."""
    given = json.loads(os.environ[ENVIRONMENT])
    lists = {name: tuple(given[name]) for name in ("keys", "hosts")}
    return _own_process(Settings(**{**given, **lists}))


def _own_process(settings: Settings) -> Any:
    """Return the application of a process that does nothing else."""
    gc.freeze()  # what was imported stays: no collection has to look at it
    # A missing column or row of features is worth a warning for a table, not for each request.
    for name in ("simrec.model.update.add_entities", "simrec.model.tower"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # glibc keeps what is freed of up to 32 MB once such a piece was freed: models that were
    # replaced, blocks of vectors. With a fixed limit they go back to the system.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 4 << 20)
        ctypes.CDLL(None).mallopt(_TRIM_THRESHOLD, 64 << 20)
    return create_app(settings)


def run(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve until the process is told to stop."""
    import uvicorn

    options: dict[str, Any] = dict(
        host=host, port=port, log_level="warning", timeout_keep_alive=30, limit_concurrency=1000
    )
    if workers == 1:
        uvicorn.run(_own_process(settings), **options)
        return
    os.environ[ENVIRONMENT] = json.dumps(dataclasses.asdict(settings))
    uvicorn.run("simrec.serve.app:from_environment", factory=True, workers=workers, **options)
