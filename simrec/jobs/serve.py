"""A model to other systems: by HTTP (`serve`), with a page (`studio`), or as files (`export`)."""

import ipaddress
import logging
import os
from dataclasses import dataclass
from typing import Any, Literal

from simrec.errors import InputError
from simrec.jobs.io.inputs import ModelReference, RankBy
from simrec.jobs.io.outputs import claim
from simrec.jobs.options import Path
from simrec.storage.artifacts import read_manifest

logger = logging.getLogger(__name__)

_KEYS = "SIMREC_API_KEYS"


@dataclass(frozen=True)
class ServiceOptions:
    """What a service answers from, and where it listens.

    Parameters
    ----------
    other : path, optional
        A second model, to compare with.
    host : str
        Address to listen at; any other than this machine's own needs keys.
    port : int
        Port to listen at.
    state : path, optional
        Directory of new items, users and feedback; by default beside the model.
    keys : path, optional
        File with an API key a line; or the environment has them in SIMREC_API_KEYS, with commas.
    figures : path, optional
        JSON that `simrec evaluate --json` wrote, for the model's card in the studio.
    """

    other: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    state: Path | None = None
    keys: Path | None = None
    figures: Path | None = None


def serve(
    model: Path,
    service: ServiceOptions = ServiceOptions(),
    *,
    workers: int = 1,
    rate: float = 0.0,
    max_body: int = 1 << 20,
    poll: float = 2.0,
) -> dict[str, Any]:
    """Serve a model by HTTP until it is stopped (extra ``simrec[serve]``).

    Parameters
    ----------
    model : path
        The model directory. It may be replaced meanwhile: the new model takes over.
    workers : int
        Processes that answer; they share the pages of the model and the log.
    rate : float
        Requests a second for each key or address, at most; 0 for any number.
    max_body : int
        Bytes of a request, at most.
    poll : float
        Seconds between looks at the model directory.
    """
    return _serve("serve", model, service, workers, rate=rate, body=max_body, poll=poll)


def studio(model: Path, service: ServiceOptions = ServiceOptions()) -> dict[str, Any]:
    """Serve a model with a page to try it by hand (extra ``simrec[serve]``)."""
    return _serve("studio", model, service, studio=True)


def _serve(
    job: str, model: Path, service: ServiceOptions, workers: int = 1, **settings: Any
) -> dict[str, Any]:
    host, port = service.host, service.port
    given = {"workers": (workers, 1), "port": (port, 0), "rate": (settings.get("rate", 0), 0)}
    for name, (value, least) in given.items():
        if not value >= least:
            raise InputError(f"{name}: expected at least {least}, got {value}")
    for path in (model, service.other):
        if path is not None:
            read_manifest(path)  # says what is wrong before anything is started
    keys, own = _read_keys(service.keys), _is_own(host)
    if not keys and not own:
        raise InputError(
            f"host: {host} can be reached by others: give keys (a file with an API key a line, or "
            f"{_KEYS} in the environment)."
        )
    try:
        from simrec.serve.app import run
        from simrec.serve.service import Settings
    except ImportError as error:
        raise InputError(
            f"serve: needs the extra: pip install 'simrec[serve]' ({error})"
        ) from error
    paths = {
        name: os.fspath(getattr(service, name) or "") for name in ("other", "state", "figures")
    }
    hosts = ("localhost", "127.0.0.1", "::1") if own else ()
    settings |= {"model": os.fspath(model), "keys": keys, "hosts": hosts, **paths}
    address = f"http://{host}:{port}/"
    logger.info("%s at %s (Ctrl-C ends it)", "studio" if job == "studio" else "service", address)
    run(Settings(**settings), host, port, workers)
    return {"job": job, "address": address}


def _read_keys(path: Path | None) -> tuple[str, ...]:
    """Return the API keys of a file or of the environment."""
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        except OSError as error:
            raise InputError(f"keys: {path}: {error.strerror}") from error
    else:
        lines = os.environ.get(_KEYS, "").split(",")
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if path is not None and not keys:
        raise InputError(f"keys: {path} has no key in it")
    if any(len(key) < 16 for key in keys):
        raise InputError("keys: a key needs at least 16 characters")
    return keys


def _is_own(host: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def export(
    model: Path,
    out: Path,
    *,
    format: Literal["savedmodel", "tower", "parquet", "faiss"],
    side: Literal["item", "user"] | None = None,
    items: Path | None = None,
    users: Path | None = None,
    rank_by: RankBy = "both",
    unknown: Literal["error", "prior"] = "error",
) -> dict[str, Any]:
    """Write a model for another system.

    Parameters
    ----------
    out : path
        The directory to write; an earlier export there is replaced.
    format : str
        savedmodel (user tower and item index for TensorFlow), tower (features to vectors),
        parquet (vectors) or faiss (index over the items).
    side : str, optional
        The tower to export, item or user; of parquet both by default.
    items : path, optional
        Items to export instead of all known ones: item_id, with features of those not known.
    users : path, optional
        Users to export instead of all known ones, likewise; for parquet.
    unknown : str
        What the SavedModel does with an unknown user without features: error, or prior, the
        answer for an average user.

    Returns
    -------
    dict
        What was written; for faiss with its recall@10 against exact search.
    """
    from simrec.model.export.formats import check_replaceable

    # Found out now rather than after loading.
    check_replaceable(out)
    reference = ModelReference.of(model)
    given: dict[str, Any] = {"side": side, "items": items, "users": users, "rank_by": rank_by}
    with claim(out, model=model, items=items, users=users):
        return reference.load().export(out, format, **given, unknown=unknown)
