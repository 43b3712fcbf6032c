"""The model directory: a manifest, arrays and documents; no pickle.

::

    model/
      manifest.json             format, kind, model id, config, facts, checksums of files and itself
      <name>.npy                arrays, memory-mapped when loaded
      <name>.json               documents, such as fitted encoders
      <name>.weights.0000.npy   weights of a Keras model, in the order of ``get_weights()``

In a directory in shards some arrays are divided by rows, all in the same way:
``<name>-00000-of-00008.npy``. These files are mapped when the directory is loaded and compared with
their checksums when they are first read; all others when it is loaded.
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
from simrec.storage.rows import Rows, SparseRows, StoredArray, StoredMatrix, shards_of

if TYPE_CHECKING:
    from scipy import sparse

T = TypeVar("T")

# Seconds to wait for a directory that another process keeps replacing.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Artifact:
    """A loaded model directory: what was saved, by name; an array in shards is a `Rows`."""

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
        """Return an array of a shape, None for any length, and of kinds of numbers.

        Floats must be finite; those of an array in shards are looked at when they are first read.
        """
        if name not in self.arrays:
            raise InputError(f"{self.path}: has no array {name!r}. {REMEDY}")
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(
            n is None or n == m for n, m in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in kinds:
            np.asarray(array)  # where a shard is damaged, that is what to say
            raise InputError(
                f"{self.path / name}.npy: {array.dtype} of shape {array.shape}, expected kind "
                f"{kinds!r} of shape {shape} (None: any length). {REMEDY}"
            )
        if not isinstance(array, Rows):
            npy.check_finite(self.path / f"{name}.npy", array)
        return array

    def rows(
        self, name: str, sizes: Sequence[int], shape: tuple[int | None, ...] = (), kinds: str = "f"
    ) -> Any:
        """Return an array whose shards have `sizes` rows of a `shape`; see `array`."""
        array = self.array(name, (sum(sizes), *shape), kinds)
        found = [shard.shape[0] for shard in shards_of(array)]
        if found != list(sizes):
            raise InputError(
                f"{self.path}: shards of {name!r} have {found} rows, expected {list(sizes)}. "
                f"{REMEDY}"
            )
        return array

    def csr_matrix(
        self,
        name: str,
        shape: tuple[int, int],
        sizes: Sequence[int] | None = None,
        kinds: str = "f",
    ) -> "sparse.csr_matrix | SparseRows":
        """Return a sparse matrix after checking each index; those of a shard when it is read."""
        sizes = sizes or (shape[0],)
        starts = self.rows(f"{name}_indptr", [n + 1 for n in sizes], (), "i")
        data = self.array(f"{name}_data", (None,), kinds)
        entries = [shard.shape[0] for shard in shards_of(data)]
        arrays = data, self.rows(f"{name}_indices", entries, (), "i"), starts
        if not isinstance(data, Rows):
            return npy.checked_csr(f"{self.path}: {name!r}", arrays, shape)
        shards = zip(*map(shards_of, arrays), strict=True)
        found = [StoredMatrix(some, (n, shape[1])) for some, n in zip(shards, sizes, strict=True)]
        return SparseRows(found)

    def id_type(self, name: str) -> pa.DataType:
        """Return the Arrow type of the ids of which `id_arrays` made arrays."""
        if name in self.arrays:
            return pa.from_numpy_dtype(self.array(name, (None,), "iu").dtype)
        offsets = self.array(f"{name}_offsets", (None,), "i")
        return pa.string() if offsets.dtype.itemsize == 4 else pa.large_string()

    def ids(self, name: str, shard: int | None = None) -> pa.Array:
        """Return the ids of which `id_arrays` made arrays, of all or of one shard."""

        def values(name: str, kinds: str) -> np.ndarray:
            array = self.array(name, (None,), kinds)
            return np.asarray(array if shard is None else array.shards[shard])

        if name in self.arrays:
            numbers = np.ascontiguousarray(values(name, "iu"))
            kind, buffer = pa.from_numpy_dtype(numbers.dtype), pa.py_buffer(numbers)
            # `pa.array` would import pandas, a third of a second in a small job.
            return pa.Array.from_buffers(kind, len(numbers), [None, buffer])
        offsets, text = values(f"{name}_offsets", "i"), values(f"{name}_text", "u")
        return npy.checked_strings(self.path / f"{name}_offsets.npy", offsets, text)

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


def write_shard(
    directory: Path, number: int, of: int, arrays: Mapping[str, np.ndarray | StoredArray]
) -> dict[str, dict[str, Any]]:
    """Write a shard to a directory that `aside` gave; return the entries of its files.

    What is stored in an earlier directory, unchanged, is linked instead of written.
    """
    _check_names([*arrays])
    written = {}
    for name, array in arrays.items():
        file = directory / f"{name}-{number:05d}-of-{of:05d}.npy"
        if isinstance(array, StoredArray):
            array.put(file)
            written[file.name] = array.entry
        else:
            npy.write_npy(file, array)
            written[file.name] = files.checksum(file)
    return written


def load(
    path: str | os.PathLike,
    kind: str | None = None,
    skip: str | None = None,
    shard: int | None = None,
) -> Artifact:
    """Load a model directory after checking it.

    A directory that another process replaces meanwhile is loaded as it was before or after. A model
    of another kind is refused, and files with `skip` in their names are neither checked nor loaded.
    With `shard` only this one of the shards is loaded, as arrays in one piece.
    """
    return _stable(Path(path), lambda root: _load(root, kind, skip, shard))


def _load(root: Path, kind: str | None, skip: str | None, shard: int | None) -> Artifact:
    manifest = manifests.read(root)
    if kind is not None and manifest["kind"] != kind:
        raise InputError(f"{root}: a {manifest['kind']!r} model, expected {kind!r}")
    loaded, listed = Artifact(root, manifest), manifest["files"]
    divided = _divided(root, listed)
    of = max(map(len, divided.values()), default=0)
    if shard is not None and not 0 <= shard < of:
        raise InputError(f"{root}: has {of} shards, and none with the number {shard}")
    whole = {name: name for name in sorted(listed) if not manifests.SHARD.fullmatch(name[:-4])}
    if shard is not None:
        whole |= {f"{name}.npy": shards[shard] for name, shards in divided.items()}
    for name, file_name in whole.items():
        if skip is not None and skip in name:
            continue
        file, entry = root / file_name, listed[file_name]
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
    for name, shards in divided.items() if shard is None else ():
        if skip is None or skip not in name:
            with loaded.fitting_together():
                loaded.arrays[name] = Rows([StoredArray(root / f, listed[f]) for f in shards])
    return loaded


def _divided(root: Path, listed: Mapping[str, Any]) -> dict[str, list[str]]:
    """Collect the files of each array in shards: each shard once, none missing."""
    found: dict[str, list[str]] = defaultdict(list)
    for file_name in sorted(listed):
        stem, suffix = manifests.FILE.fullmatch(file_name).groups()  # type: ignore[union-attr]
        if match := manifests.SHARD.fullmatch(stem):
            found[match[1]].append(file_name)
            if suffix == ".json":
                raise InputError(f"{root / MANIFEST}: lists {file_name!r}, a document in shards")
    of = max(map(len, found.values()), default=0)
    for name, shards in found.items():
        expected = [f"{name}-{i:05d}-of-{of:05d}.npy" for i in range(of)]
        if shards != expected or f"{name}.npy" in listed:
            raise InputError(
                f"{root / MANIFEST}: does not list each shard of {name!r} once. {REMEDY}"
            )
    return found


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
        ours = manifests.SHARD.fullmatch(name) or name == "manifest"
        if not manifests.NAME.fullmatch(name) or ours:
            raise ValueError(
                f"{name!r} cannot name a part of a model: use letters, digits, _ and -"
            )
