"""The model directory: manifest, arrays, tables, documents, Keras weights; no pickle.

::

    model/
      manifest.json        format, kind, model id, config, facts, checksums of files and itself
      <name>.npy           arrays, memory-mapped when loaded
      <name>.arrow         tables (Arrow IPC), memory-mapped when loaded
      <name>.json          documents, such as fitted encoders
      <name>.weights.npz   weights of a Keras model, in the order of ``get_weights()``

In a directory in shards some arrays and tables are divided by rows, all in the same way:
``<name>-00000-of-00008.npy``. These files are mapped when the directory is loaded and compared with
their checksums when they are first read; all others when it is loaded.

Checksums find damage, not malice: `simrec.untrusted` reads the files as if anybody had made them.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from simrec import files, stored, untrusted
from simrec import manifest as manifests
from simrec.errors import InputError
from simrec.manifest import FORMAT_VERSION, MANIFEST
from simrec.rows import Rows, SparseRows
from simrec.stored import StoredArray, StoredFile, StoredMatrix, StoredTable

if TYPE_CHECKING:
    from scipy import sparse

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "Artifact",
    "aside",
    "check_replaceable",
    "load",
    "read_manifest",
    "remove",
    "save",
    "write",
    "write_shard",
]

T = TypeVar("T")

# Seconds to wait for a directory that another process keeps replacing.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Artifact:
    """A loaded model directory.

    Attributes
    ----------
    path : Path
        Where it was loaded from.
    manifest : dict
        The content of ``manifest.json``.
    arrays, tables, documents, keras_weights : dict
        What was saved, by name. Arrays and tables are read-only views of the files. An array in
        shards is a `Rows`, a table in shards a tuple of `StoredTable`.
    """

    path: Path
    manifest: dict[str, Any]
    arrays: dict[str, Any]
    tables: dict[str, Any]
    documents: dict[str, Any]
    keras_weights: dict[str, list[np.ndarray]]

    @property
    def model_id(self) -> str:
        """The hash of the model's content: equal models have equal ids."""
        return self.manifest["model_id"]

    @property
    def config(self) -> dict[str, Any]:
        """The arguments the model was made with."""
        return self.manifest["config"]

    @property
    def facts(self) -> dict[str, Any]:
        """What was learned or counted while fitting."""
        return self.manifest["facts"]

    def array(self, name: str, shape: tuple[int | None, ...], kinds: str = "f") -> Any:
        """Return an array after checking it.

        Parameters
        ----------
        name : str
            Its name.
        shape : tuple
            The shape it must have, None for any length.
        kinds : str
            Kinds of numbers it may hold: ``f``, ``i``, ``u``, ``b``. Floats must be finite; those
            of an array in shards are looked at when they are first read.

        Raises
        ------
        InputError
            If it is missing or is anything else.
        """
        if name not in self.arrays:
            raise InputError(f"{self.path}: has no array {name!r}. {manifests.REMEDY}")
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(
            n is None or n == m for n, m in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in kinds:
            for shard in array.shards if isinstance(array, Rows) else ():
                shard.file.read()  # where one is damaged, that is what to say
            expected = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
            raise InputError(
                f"{self.path / name}.npy: {array.dtype} of shape {array.shape}, expected kind "
                f"{kinds!r} of shape {expected}. {manifests.REMEDY}"
            )
        if not isinstance(array, Rows) and not untrusted.is_finite(array):
            raise stored.not_finite(self.path / f"{name}.npy")
        return array

    def rows(
        self, name: str, sizes: Sequence[int], shape: tuple[int | None, ...] = (), kinds: str = "f"
    ) -> Any:
        """Return an array after checking it, of which each shard has as many rows as it should.

        Parameters
        ----------
        name : str
            Its name.
        sizes : sequence of int
            Rows of each shard; of an array in one piece, its length.
        shape : tuple
            The shape of a row, as in `array`.
        kinds : str
            As in `array`.
        """
        array = self.array(name, (sum(sizes), *shape), kinds)
        self._check_sizes(name, array, sizes)
        return array

    def csr_matrix(
        self, name: str, shape: tuple[int, int], sizes: Sequence[int] | None = None
    ) -> "sparse.csr_matrix | SparseRows":
        """Return the sparse matrix of three arrays after checking every index in it.

        Parameters
        ----------
        name : str
            Its name.
        shape : (int, int)
            Its shape.
        sizes : sequence of int, optional
            Rows of each shard, where it is in shards. Its indices are checked when it is read.
        """
        data = self.array(f"{name}_data", (None,))
        indices = self.array(f"{name}_indices", data.shape, "i")
        if not isinstance(data, Rows):
            self._check_sizes(name, range(shape[0]), sizes or (shape[0],))
            starts = self.array(f"{name}_indptr", (shape[0] + 1,), "i")
            return stored.checked_csr(self.path, name, data, indices, starts, shape)
        sizes = sizes or ()
        starts = self.rows(f"{name}_indptr", [n + 1 for n in sizes], (), "i")
        self._check_sizes(f"{name}_indices", indices, data.sizes)
        shards = zip(data.shards, indices.shards, starts.shards, sizes, strict=True)
        return SparseRows([StoredMatrix(name, d, i, s, (n, shape[1])) for d, i, s, n in shards])

    def _check_sizes(self, name: str, array: Any, sizes: Sequence[int]) -> None:
        found = array.sizes if isinstance(array, Rows) else (len(array),)
        if tuple(found) != tuple(sizes):
            raise InputError(
                f"{self.path}: shards of {name!r} have {list(found)} rows, expected {list(sizes)}. "
                f"{manifests.REMEDY}"
            )

    @contextmanager
    def fitting_together(self) -> Iterator[None]:
        """Turn what goes wrong when a model is made of its parts into an InputError."""
        try:
            yield
        except InputError as error:
            if str(self.path) in str(error):
                raise
            raise InputError(f"{self.path}: {error}") from error
        except (*untrusted.ERRORS, AttributeError, ArithmeticError, AssertionError) as error:
            raise InputError(
                f"{self.path}: its parts do not fit together ({type(error).__name__}: {error}). "
                f"{manifests.REMEDY}"
            ) from error


def save(
    path: str | os.PathLike,
    kind: str,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    tables: Mapping[str, pa.Table],
    documents: Mapping[str, Any],
    keras_weights: Mapping[str, Sequence[np.ndarray]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Write a model directory, replacing an earlier one only when the new one is complete.

    Parameters
    ----------
    path : path
        The directory to make. An existing model directory is replaced in one step; any other
        directory that is not empty is refused.
    kind : str
        What the model is, such as ``"two_tower"``.
    config : mapping
        Constructor arguments, as plain JSON data.
    arrays : mapping of str to ndarray
        Arrays of numbers, each its own ``.npy`` file.
    tables : mapping of str to pyarrow.Table
        Tables, such as the ids.
    documents : mapping of str to JSON data
        Plain data, such as fitted encoders.
    keras_weights : mapping of str to list of ndarray, optional
        Keras weights, as ``get_weights()`` gives them.
    facts : mapping, optional
        Counts, seed, schema, chosen settings; not part of the model id.

    Returns
    -------
    str
        The model id.
    """
    with aside(path) as directory:
        write(directory, arrays, tables, documents, keras_weights)
        return manifests.write(directory, kind, config, facts or {})


def aside(path: str | os.PathLike) -> AbstractContextManager[Path]:
    """Give a directory that becomes the model directory `path` when the block ends well."""
    return files.directory_aside(path, check_replaceable)


def write(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    tables: Mapping[str, pa.Table],
    documents: Mapping[str, Any],
    keras_weights: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> None:
    """Write the files of a model directory but for its manifest; see `save`."""
    weights = keras_weights or {}
    _check_names([*arrays, *tables, *documents, *weights])
    for name, array in arrays.items():
        _check_numeric(name, array)
        files.save_npy(directory / f"{name}.npy", array)
    for name, table in tables.items():
        _write_table(directory / f"{name}.arrow", table)
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(files.plain_json(name, document), encoding="utf-8")
    for name, values in weights.items():
        for value in values:
            _check_numeric(name, value)
        # Named by position: the order of get_weights() is what counts.
        named = {f"w{i:04d}": np.asarray(value) for i, value in enumerate(values)}
        files.save_npz(directory / f"{name}.weights.npz", named)


def write_shard(
    directory: Path,
    number: int,
    of: int,
    arrays: Mapping[str, np.ndarray | StoredArray],
    tables: Mapping[str, pa.Table | StoredTable],
) -> dict[str, dict[str, Any]]:
    """Write the files of one shard; return their entries for the manifest.

    What is stored in an earlier directory, unchanged, is linked instead of written.

    Parameters
    ----------
    directory : Path
        The directory that `aside` gave, maybe to another process.
    number, of : int
        Which shard of how many.
    arrays, tables : mapping
        Its rows of everything that is divided.
    """
    _check_names([*arrays, *tables])
    written = {}
    for suffix, contents in ((".npy", arrays), (".arrow", tables)):
        for name, content in contents.items():
            file = directory / f"{manifests.shard_name(name, number, of)}{suffix}"
            if isinstance(content, StoredArray | StoredTable):
                content.file.put(file)
                written[file.name] = dict(content.file.entry)
            else:
                if isinstance(content, pa.Table):
                    _write_table(file, content)
                else:
                    _check_numeric(name, content)
                    files.save_npy(file, content)
                written[file.name] = manifests.entry(file)
    return written


def _write_table(file: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)


def load(
    path: str | os.PathLike,
    kind: str | None = None,
    mmap: bool = True,
    skip: str | None = None,
    shard: int | None = None,
) -> Artifact:
    """Load a model directory after checking it.

    A directory that another process replaces meanwhile is loaded as it was before or after.

    Parameters
    ----------
    path : path
        The directory.
    kind : str, optional
        Refuse a model of another kind.
    mmap : bool
        Map arrays and tables into memory instead of reading them.
    skip : str, optional
        Leave files with this in their names alone: neither checked nor loaded.
    shard : int, optional
        Load only this one of the shards, as arrays and tables in one piece.

    Returns
    -------
    Artifact
    """
    return _stable(Path(path), lambda root: _load(root, kind, mmap, skip, shard))


def _load(
    root: Path, kind: str | None, mmap: bool, skip: str | None, shard: int | None
) -> Artifact:
    manifest = manifests.read(root)
    if kind is not None and manifest["kind"] != kind:
        raise InputError(f"{root}: a {manifest['kind']!r} model, expected {kind!r}")
    loaded = Artifact(root, manifest, {}, {}, {}, {})
    divided = _divided(root, manifest["files"])
    of = max((len(shards) for shards in divided.values()), default=0)
    if shard is not None and not 0 <= shard < of:
        raise InputError(f"{root}: has {of} shards, and none with the number {shard}")
    for file_name, entry in manifest["files"].items():
        match = manifests.FILE.fullmatch(file_name)
        if match is None:
            raise InputError(f"{root / MANIFEST}: lists {file_name!r}, no file of a model")
        name, suffix = match.groups()
        if (skip is not None and skip in file_name) or manifests.SHARD.fullmatch(name):
            continue
        _load_file(loaded, name, suffix, root / file_name, entry, mmap)
    for (name, suffix), shards in divided.items():
        if skip is not None and skip in name:
            continue
        if shard is not None:
            _load_file(loaded, name, suffix, root / shards[shard][0], shards[shard][1], mmap)
            continue
        mapped = [StoredFile(root / file_name, entry, mmap) for file_name, entry in shards]
        if suffix == ".npy":
            with loaded.fitting_together():
                loaded.arrays[name] = Rows([StoredArray(file) for file in mapped])
        else:
            loaded.tables[name] = tuple(StoredTable(file) for file in mapped)
    return loaded


def _load_file(
    loaded: Artifact, name: str, suffix: str, file: Path, entry: Mapping[str, Any], mmap: bool
) -> None:
    _check_file(file, entry)
    if suffix == ".npy":
        loaded.arrays[name] = untrusted.read_npy(file, mmap)
    elif suffix == ".arrow":
        loaded.tables[name] = untrusted.read_arrow(file, mmap)
    elif suffix == ".json":
        loaded.documents[name] = untrusted.read_json(file)
    else:
        loaded.keras_weights[name] = untrusted.read_npz(file)


def _divided(
    root: Path, listed: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]]:
    """Collect the files of each part in shards: each shard once, none missing."""
    found: dict[tuple[str, str], dict[int, tuple[str, Mapping[str, Any]]]] = {}
    numbers = set()
    for file_name, entry in listed.items():
        match = manifests.FILE.fullmatch(file_name)
        shard = match and manifests.SHARD.fullmatch(match[1])
        if match and shard:
            numbers.add(int(shard[3]))
            found.setdefault((shard[1], match[2]), {})[int(shard[2])] = file_name, entry
    wrong = [
        name
        for name, suffix in found
        if suffix not in (".npy", ".arrow")
        or f"{name}{suffix}" in listed
        or len(numbers) > 1
        or sorted(found[name, suffix]) != list(range(*numbers))
    ]
    if wrong:
        raise InputError(
            f"{root / MANIFEST}: does not list each shard of {wrong[0]!r} once. {manifests.REMEDY}"
        )
    return {key: [shards[i] for i in range(len(shards))] for key, shards in found.items()}


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
    """Read and check ``manifest.json`` of a model directory."""
    return _stable(Path(path), manifests.read)


def _stable(root: Path, read: Callable[[Path], T]) -> T:
    """Read a directory that may be replaced meanwhile: again, until it stayed the same."""
    started = time.monotonic()
    while True:
        before = _stamp(root)
        try:
            result, failure = read(root), None
        except (InputError, OSError) as error:
            result, failure = None, error
        # Where directories cannot be exchanged there is none for an instant.
        replaced = _stamp(root) != before or (before is None and files.is_being_replaced(root))
        if failure is None and not replaced:
            return result  # type: ignore[return-value]
        if not replaced or time.monotonic() - started > _PATIENCE:
            raise failure or InputError(f"{root}: is replaced all the time. Try again.")
        time.sleep(0.001)


def _stamp(root: Path) -> tuple[int, ...] | None:
    try:
        stat = (root / MANIFEST).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise InputError if a model cannot be saved at `path` without destroying something else."""
    files.check_replaceable(path, "a model", manifests.listing)


def remove(path: str | os.PathLike, kind: str) -> None:
    """Delete a directory of a kind that `save` wrote, if it holds nothing else."""
    root = Path(path)
    try:
        found = manifests.listing(root) is not None and manifests.read(root)["kind"] == kind
        check_replaceable(root)
    except InputError:
        return
    if found:
        shutil.rmtree(root)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        ours = manifests.SHARD.fullmatch(name) or name == "manifest"
        if not manifests.NAME.fullmatch(name) or ours:
            raise ValueError(
                f"{name!r} cannot name a part of a model: use letters, digits, _ and -"
            )


def _check_numeric(name: str, array: np.ndarray) -> None:
    dtype = np.asarray(array).dtype
    if dtype.str not in untrusted.DTYPES:
        raise TypeError(f"array {name!r} has dtype {dtype}: only numbers are saved")


def _check_file(file: Path, entry: Mapping[str, Any]) -> None:
    stored.check_size(file, entry)
    if files.sha256(file) != entry["sha256"]:
        raise stored.damaged(file)
