"""The HTTP surface: endpoints, keys, limits, errors as problem+json, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import hashlib
import hmac
import json
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from pydantic_core import ValidationError, to_json
from starlette.exceptions import HTTPException as AnyHTTPException

from simrec import __version__
from simrec.errors import InputError
from simrec.scoring.threads import processors
from simrec.serve import requests
from simrec.serve.service import Service, Settings
from simrec.storage.files import is_full_disk

logger = logging.getLogger(__name__)

ENVIRONMENT = "SIMREC_SERVE"
_MMAP_THRESHOLD = -3  # of glibc's mallopt
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
_PUBLIC = ("/healthz", "/readyz")
_PATIENCE = 30.0  # seconds to wait for the body of a request
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def problem(status: int, title: str, detail: str) -> JSONResponse:
    """Return an error as RFC 9457 has it."""
    detail = detail.encode("utf-8", "replace").decode()  # lone surrogates of a request
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return JSONResponse(content, status, media_type="application/problem+json")


class Guard:
    """Stands before the application: names, keys, rates, sizes, and counts what was asked."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self._keys = [hashlib.sha256(key.encode()).digest() for key in settings.keys]
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.buckets: Counter[float] = Counter()
        self.seconds = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Check a request, and pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["guard"] = self
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        started, status = time.perf_counter(), 500
        size = 0

        async def counted() -> Any:
            nonlocal size
            try:
                message = await asyncio.wait_for(receive(), _PATIENCE)
            except TimeoutError:
                raise HTTPException(408, "The request did not arrive in time.") from None
            size += len(message.get("body", b""))
            if size > self.settings.body:
                raise HTTPException(413, self._too_large())
            return message

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refused = self._refused(scope, headers)
        try:
            if refused is not None:
                await refused(scope, receive, noted)
            else:
                await self.app(scope, counted, noted)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            taken = time.perf_counter() - started
            self.requests[path, status] += 1
            self.seconds += taken
            self.buckets[next((b for b in _BUCKETS if taken <= b), float("inf"))] += 1

    def _too_large(self) -> str:
        return f"A request may have {self.settings.body:,} bytes."

    def _refused(self, scope: Any, headers: dict[str, bytes]) -> Response | None:
        """Return why a request is not passed on; None where it is."""
        host = headers.get("host", b"").decode("latin-1").rsplit("@")[-1].lower()
        name = (
            host[: host.rfind("]") + 1].strip("[]") if host.startswith("[") else host.split(":")[0]
        )
        if self.settings.hosts and name not in self.settings.hosts:
            return problem(421, "Misdirected", f"This service is not called {name!r}.")
        length = headers.get("content-length", b"0")
        if length.isdigit() and int(length) > self.settings.body:
            return problem(413, "Too large", self._too_large())
        client = (scope.get("client") or ("", 0))[0]
        if self._keys and scope["path"] not in _PUBLIC:
            given = headers.get("x-api-key", b"")
            bearer = headers.get("authorization", b"")
            if not given and bearer.lower().startswith(b"bearer "):
                given = bearer[7:].strip()
            digest = hashlib.sha256(given).digest()
            if not any([hmac.compare_digest(digest, key) for key in self._keys]):
                return problem(401, "Unauthorized", "Send a key as X-API-Key or as Bearer.")
            client = digest.hex()
        if self.settings.rate and scope["path"] not in _PUBLIC and not self._within(client):
            return problem(429, "Too many requests", f"At most {self.settings.rate:g} a second.")
        return None

    def _within(self, client: str) -> bool:
        """Take a token from a client's bucket; a bucket holds those of two seconds."""
        now, rate = time.monotonic(), self.settings.rate
        most = max(2 * rate, 1.0)
        tokens, at = self._buckets.pop(client, (most, now))
        tokens = min(most, tokens + (now - at) * rate)
        self._buckets[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        while len(self._buckets) > 10_000:
            self._buckets.popitem(last=False)
        return tokens >= 1

    def text(self, service: Service) -> str:
        """Return what was counted, as Prometheus reads it."""
        lines = ["# TYPE simrec_requests_total counter"]
        for (path, status), n in sorted(self.requests.items()):
            lines.append(f'simrec_requests_total{{path="{path}",status="{status}"}} {n}')
        lines.append("# TYPE simrec_request_seconds histogram")
        total = 0
        for bucket in (*_BUCKETS, float("inf")):
            total += self.buckets[bucket]
            shown = "+Inf" if bucket == float("inf") else f"{bucket:g}"
            lines.append(f'simrec_request_seconds_bucket{{le="{shown}"}} {total}')
        lines += [f"simrec_request_seconds_sum {self.seconds:.6f}"]
        lines += [f"simrec_request_seconds_count {total}"]
        for name in ("model_swaps_total", "model_refused_total", "feedback_records_total"):
            lines += [f"# TYPE simrec_{name} counter", f"simrec_{name} {service.counts[name]}"]
        lines.append("# TYPE simrec_model_info gauge")
        for which, engine in service.engines.items():
            label = f'model="{which}",model_id="{engine.model.model_id_}"'
            lines.append(f"simrec_model_info{{{label}}} 1")
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        lines.append("# TYPE process_resident_memory_bytes gauge")
        lines.append(f"process_resident_memory_bytes {pages * os.sysconf('SC_PAGE_SIZE')}")
        return "\n".join(lines) + "\n"


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
        return problem(400, "Bad input", str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(map(str, first.get("loc", ())))
        return problem(422, "Invalid request", f"{where}: {first.get('msg')}")

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
            body = await http.body()
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
