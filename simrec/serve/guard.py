"""What stands before the application: names, keys, rates and sizes of requests; counts them."""

import asyncio
import hashlib
import hmac
import os
import time
from collections import Counter, OrderedDict
from typing import Any

from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse

from simrec.serve.service import Service, Settings

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
_PUBLIC = ("/healthz", "/readyz")
_PATIENCE = 30.0  # seconds to wait for the body of a request


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
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
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
        lines, asked = ["# TYPE simrec_requests_total counter"], sorted(self.requests.items())
        lines += [f'simrec_requests_total{{path="{p}",status="{s}"}} {n}' for (p, s), n in asked]
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
