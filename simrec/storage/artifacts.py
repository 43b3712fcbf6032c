"""The model directory: a manifest, arrays and documents; no pickle.

::

    model/
      manifest.json             format, kind, model id, config, facts, checksums of files and itself
      <name>.npy                arrays, memory-mapped when loaded
      <name>.json               documents, such as fitted encoders
      <name>.weights.0000.npy   weights of a Keras model, in the order of ``get_weights()``
"""

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from simrec.errors import InputError
from simrec.storage import arrays as npy
from simrec.storage import files
from simrec.storage import manifest as manifests
from simrec.storage.arrays import REMEDY
from simrec.storage.manifest import MANIFEST

if TYPE_CHECKING:
    from scipy import sparse

T = TypeVar("T")

# Seconds to wait for a directory that another process keeps replacing.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Artifact:
    """A loaded model directory: what was saved, by name."""

    path: Path
    manifest: dict[str, Any]
    arrays: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    keras_weights: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))

    @property
    def model_id(self) -> str:
        """The hash of the model's content: equal models have equal ids."""
        return self.manifest["model_id"]

    @property
    def config(self) -> dict[str, Any]:
        """The arguments the model was made with."""
        return self.manifest["config"]

    @property
    def arguments(self) -> dict[str, Any]:
        """The same with tuples for lists, as constructors take them."""
        return {k: tuple(v) if isinstance(v, list) else v for k, v in self.config.items()}

    @property
    def facts(self) -> dict[str, Any]:
        """What was learned or counted while fitting."""
        return self.manifest["facts"]

    def array(self, name: str, shape: tuple[int | None, ...], kinds: str = "f") -> Any:
        """Return an array of a shape, None for any length, and of kinds of numbers; finite."""
        if name not in self.arrays:
            raise InputError(f"{self.path}: has no array {name!r}. {REMEDY}")
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(
            n is None or n == m for n, m in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in kinds:
            raise InputError(
                f"{self.path / name}.npy: {array.dtype} of shape {array.shape}, expected kind "
                f"{kinds!r} of shape {shape} (None: any length). {REMEDY}"
            )
        npy.check_finite(self.path / f"{name}.npy", array)
        return array

    def csr_matrix(
        self, name: str, shape: tuple[int, int], kinds: str = "f"
    ) -> "sparse.csr_matrix":
        """Return a sparse matrix after checking each index."""
        pieces = {"data": kinds, "indices": "i", "indptr": "i"}
        arrays = [self.array(f"{name}_{piece}", (None,), kind) for piece, kind in pieces.items()]
        return npy.checked_csr(f"{self.path}: {name!r}", arrays, shape)

    def ids(self, name: str) -> pa.Array:
        """Return the ids of which `id_arrays` made arrays."""
        if name in self.arrays:
            numbers = self.array(name, (None,), "iu")
            kind, buffer = pa.from_numpy_dtype(numbers.dtype), pa.py_buffer(numbers)
            # `pa.array` would import pandas, a third of a second in a small job.
            return pa.Array.from_buffers(kind, len(numbers), [None, buffer])
        offsets, text = self.array(f"{name}_offsets", (None,), "i"), f"{name}_text"
        file = self.path / f"{name}_offsets.npy"
        return npy.checked_strings(file, offsets, self.array(text, (None,), "u"))

    @contextmanager
    def fitting_together(self) -> Iterator[None]:
        """Turn what goes wrong when a model is made of its parts into an InputError."""
        try:
            yield
        except InputError as error:
            if str(self.path) in str(error):
                raise
            raise InputError(f"{self.path}: {error}") from error
        except (*npy.ERRORS, AttributeError, ArithmeticError, AssertionError) as error:
            raise InputError(
                f"{self.path}: its parts do not fit together ({type(error).__name__}: {error}). "
                f"{REMEDY}"
            ) from error


def save(
    path: str | os.PathLike,
    kind: str,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    documents: Mapping[str, Any],
    keras_weights: Mapping[str, Sequence[np.ndarray]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Write a model directory in one step, in place of an earlier one; return the model id.

    Facts are not part of the id. A directory of other files is refused.
    """
    with aside(path) as directory:
        write(directory, arrays, documents, keras_weights)
        return manifests.write(directory, kind, config, facts or {})


def aside(path: str | os.PathLike) -> AbstractContextManager[Path]:
    """Give a directory that becomes the model directory `path` when the block ends well."""
    return files.directory_aside(path, check_replaceable)


def write(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    documents: Mapping[str, Any],
    keras_weights: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> None:
    """Write the files of a model directory but for its manifest; see `save`."""
    weights = keras_weights or {}
    _check_names([*arrays, *documents, *weights])
    for name, array in arrays.items():
        npy.write_npy(directory / f"{name}.npy", array)
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(files.plain_json(name, document), encoding="utf-8")
    for name, values in weights.items():
        for number, value in enumerate(values):
            npy.write_npy(directory / f"{name}.weights.{number:04d}.npy", value)


def load(path: str | os.PathLike, kind: str | None = None, skip: str | None = None) -> Artifact:
    """Load a model directory after checking it.

    A directory that another process replaces meanwhile is loaded as it was before or after. A model
    of another kind is refused, and files with `skip` in their names are neither checked nor loaded.
    """
    return _stable(Path(path), lambda root: _load(root, kind, skip))


def _load(root: Path, kind: str | None, skip: str | None) -> Artifact:
    manifest = manifests.read(root)
    if kind is not None and manifest["kind"] != kind:
        raise InputError(f"{root}: a {manifest['kind']!r} model, expected {kind!r}")
    loaded = Artifact(root, manifest)
    for name, entry in sorted(manifest["files"].items()):
        if skip is not None and skip in name:
            continue
        file = root / name
        content = npy.map_bytes(file, entry)
        npy.verify(file, entry, content)
        stem, _, suffix = name.rpartition(".")
        if suffix == "json":
            with npy.reading(file):
                loaded.documents[stem] = npy.parse_json(content)
            continue
        network, _, number = stem.partition(".weights.")
        if number:
            loaded.keras_weights[network].append(npy.npy_view(file, content))
        else:
            loaded.arrays[stem] = npy.npy_view(file, content)
    return loaded


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
    """Read and check ``manifest.json`` of a model directory."""
    return _stable(Path(path), manifests.read)


def _stable(root: Path, read: Callable[[Path], T]) -> T:
    """Read a directory that may be replaced meanwhile: again, until it stayed the same."""
    started, file = time.monotonic(), root / MANIFEST
    while True:
        before = files.stamp(file)
        try:
            result, failure = read(root), None
        except (InputError, OSError) as error:
            result, failure = None, error
        # Where directories cannot be exchanged there is none for an instant.
        replaced = files.stamp(file) != before or (before is None and files.is_being_replaced(root))
        if failure is None and not replaced:
            return result  # type: ignore[return-value]
        if not replaced or time.monotonic() - started > _PATIENCE:
            raise failure or InputError(f"{root}: is replaced all the time. Try again.")
        time.sleep(0.001)


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise InputError if a model cannot be saved at `path` without destroying something else."""
    files.check_replaceable(path, "a model", manifests.listing)


def remove(path: str | os.PathLike, kind: str) -> None:
    """Delete a directory of a kind that `save` wrote, if it holds nothing else."""
    root = Path(path)
    with suppress(InputError):
        check_replaceable(root)
        if manifests.listing(root) is not None and manifests.read(root)["kind"] == kind:
            shutil.rmtree(root)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not manifests.NAME.fullmatch(name) or name == "manifest":
            raise ValueError(
                f"{name!r} cannot name a part of a model: use letters, digits, _ and -"
            )
