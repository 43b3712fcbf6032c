"""The models that are served, what has come in since, and how both are kept up to date."""

import base64
import contextlib
import logging
import os
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.model.two_tower import TwoTower
from simrec.serve import requests
from simrec.serve.answers import Answers
from simrec.serve.log import Log
from simrec.storage import files
from simrec.storage.artifacts import MANIFEST

logger = logging.getLogger(__name__)

# Seconds after which feedback is in a segment that `simrec update` reads.
_SEAL_SECONDS = 60.0


@dataclass(frozen=True)
class Settings:
    """What a service is started with."""

    model: str  # a model directory
    other: str = ""  # a second one; empty where one is served
    state: str = ""
    keys: tuple[str, ...] = ()  # one of which a request must bring; empty for none
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "::1", "testserver")
    rate: float = 0.0  # requests a second for each key or address, at most; 0 for any number
    body: int = 1 << 20
    poll: float = 2.0  # seconds between looks at the model directory; 0 for none
    studio: bool = False
    figures: str = ""  # JSON of ``simrec evaluate --json``, for the model's card; empty for none


class Service:
    """Models and log of a process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.paths = {"a": settings.model, **({"b": settings.other} if settings.other else {})}
        state = settings.state or f"{os.path.abspath(settings.model)}.state"
        self.log = Log(state)
        self.engines: dict[str, Answers] = {}
        self._stamps: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._sealed = time.monotonic()
        for name in self.paths:
            self._load(name)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if settings.poll:
            self._thread.start()

    def close(self) -> None:
        """Stop looking after the model, and leave all feedback in segments."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self.log.seal()

    def engine(self, name: str) -> Answers:
        """Return the model that a request names, with all that has come in."""
        self.catch_up()
        if name not in self.engines:
            raise InputError("model: only one model is served; start with --other for a second.")
        return self.engines[name]

    def catch_up(self) -> None:
        """Take in what this and other processes have logged."""
        if not self._lock.acquire(timeout=10):
            return
        try:
            records = self.log.new()
            for engine in self.engines.values() if records else ():
                engine.add(records)
        finally:
            self._lock.release()

    def _load(self, name: str) -> None:
        """Load a model beside the one that answers, replay what came since, and take its place."""
        stamp = files.stamp(Path(self.paths[name]) / MANIFEST)
        engine = Answers(TwoTower.load(self.paths[name]))
        log = Log(self.log.directory)
        engine.add(log.new())
        self.catch_up()
        with self._lock:
            engine.add(log.new())
            self.engines = {**self.engines, name: engine}
            self._stamps[name] = stamp
        logger.info("model %s: %s from %s", name, engine.model.model_id_, self.paths[name])

    def check_models(self) -> None:
        """Load models whose directories were replaced; a bad one is refused, the old goes on."""
        for name in self.paths:
            stamp = files.stamp(Path(self.paths[name]) / MANIFEST)
            if stamp is None or stamp == self._stamps.get(name):
                continue
            try:
                self._load(name)
                self.counts["model_swaps_total"] += 1
            except Exception as error:  # whatever is wrong with it, the old model goes on
                self._stamps[name] = stamp
                self.counts["model_refused_total"] += 1
                logger.error("%s: refused, the old model goes on: %s", self.paths[name], error)

    def _watch(self) -> None:
        while not self._stop.wait(self.settings.poll):
            self.check_models()
            if time.monotonic() - self._sealed > _SEAL_SECONDS:
                self._sealed = time.monotonic()
                try:
                    self.log.seal()
                except OSError as error:
                    logger.error("feedback stays in %s: %s", self.log.path, error)

    # What changes something

    def recommend(self, request: requests.Recommend) -> dict[str, Any]:
        """Return a list with its id; one that was drawn is logged with its propensities."""
        engine = self.engine(request.model)
        answer = engine.recommend(request)
        answer |= {"list_id": uuid.uuid4().hex, "model_id": engine.model.model_id_}
        if answer["seed"] is not None:
            shown = {
                "list_id": answer["list_id"],
                "user_id": "" if request.user_id is None else str(request.user_id),
                "item_id": [one["item_id"] for one in answer["items"]],
                "propensity": [one["propensity"] for one in answer["items"]],
                "timestamp": time.time(),
            }
            self.log.append("lists", [shown])
        return answer

    def _add(self, request: requests.Entities, side: Any) -> dict[str, Any]:
        """Take in new items or users; answered once they are on disk and items can be ranked."""
        engine = self.engine(request.model)
        tower, rows = engine.model.towers_[side], []
        for given in request.rows:
            row = engine.clean(given, side)
            rows.append({**row, tower.id_column: engine.id_of(row.get(tower.id_column), side)})
        ids = [row[tower.id_column] for row in rows]
        if len(set(ids)) < len(ids):
            raise InputError(f"{side}: an id is given more than once.")
        # Refused before it is on disk: features that the encoder does not take.
        found = tower.find(ids, engine.table(rows, side), "prior")
        for row in rows:  # as JSON can hold it
            images = {name: v for name, v in row.items() if isinstance(v, bytes)}
            row |= {name: base64.b64encode(v).decode() for name, v in images.items()}
        self.log.append(side, rows)
        self.catch_up()
        known = int((found.rows < found.n_known).sum())
        return {"added": len(rows) - known, "known": known, "model_id": engine.model.model_id_}

    items, users = partialmethod(_add, side="items"), partialmethod(_add, side="users")

    def feedback(self, request: requests.Feedback) -> dict[str, Any]:
        """Log ratings and events; acknowledged once they are on disk."""
        engine = self.engine(request.model)
        has_ratings = "rating" in engine.model.parts_
        engine.check_ratings("events", request.events)
        ratings: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        for one in request.events:
            row = {name: v for name, v in one.model_dump().items() if v is not None}
            row["user_id"] = engine.id_of(one.user_id, "users")
            row["item_id"] = engine.id_of(one.item_id, "items")
            row.setdefault("timestamp", time.time())
            engine.there([row["item_id"]])
            if has_ratings and one.rating is None and one.event is None:
                raise InputError("feedback: give a rating or an event.")
            taken_up = not has_ratings and one.event is None
            (ratings if one.rating is not None or taken_up else events).append(row)
        if ratings:
            self.log.append("ratings", ratings)
        if events:
            self.log.append("events", events)
        self.counts["feedback_records_total"] += len(request.events)
        self.catch_up()
        return {"logged": len(request.events), "model_id": engine.model.model_id_}

    def schema(self) -> dict[str, Any]:
        """Return what the models are: columns for forms, counts, choices, figures."""
        return {name: self._card(engine, self.paths[name]) for name, engine in self.engines.items()}

    def _card(self, engine: Answers, path: str) -> dict[str, Any]:
        model, chosen = engine.model, engine.model.chosen_.items()
        columns = {
            side: [_form(tower, name) for name in tower.encoder.columns_]
            for side, tower in model.towers_.named()
            if tower.encoder is not None
        }
        trained = None
        with contextlib.suppress(OSError):
            trained = (Path(path) / MANIFEST).stat().st_mtime
        return {
            "model_id": model.model_id_,
            "parent": model.parent_,
            "saved": trained,
            "name": Path(path).name,
            "items": len(model.items_),
            "users": len(model.users_),
            "ratings": int(model.rated_.nnz),
            "new_items": len(engine.since.items),
            "bounds": model.rating_bounds(),
            "parts": sorted(model.parts_),
            "title": engine.title,
            "catalogue": [] if model.catalogue_ is None else model.catalogue_.column_names,
            "columns": columns,
            "chosen": {n: v for n, v in chosen if isinstance(v, str | int | float | None)},
        }


def _form(tower: Any, name: str) -> dict[str, Any]:
    """Return what a form field for a column of features needs."""
    encoder = tower.encoder
    kind, start = encoder.columns_[name], f"{name}="
    place = list(encoder.columns_).index(name)
    values = []
    if kind in ("category", "list"):
        features = [encoder.feature_names_[i] for i in np.flatnonzero(encoder.groups_ == place)]
        values = [one.removeprefix(start) for one in features if one.startswith(start)]
    return {
        "name": name,
        "kind": kind,
        "values": [one for one in values if not one.startswith("<")][:500],
    }
