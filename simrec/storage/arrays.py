"""Arrays of numbers in ``.npy`` files and documents in ``.json`` files, mapped and checked.

Checksums find damage, not malice: files are read as if anybody had made them. No reader runs code,
takes more memory than the file's size allows, or returns an array that points outside of its file.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from simrec.errors import InputError

if TYPE_CHECKING:
    from scipy import sparse

REMEDY = "Restore the file from a copy, or train the model again."
# Everything that readers of hostile bytes were seen to raise.
_PLAIN = (ValueError, LookupError, TypeError, EOFError, OverflowError, RuntimeError, MemoryError)
ERRORS = (*_PLAIN, pa.ArrowException, tokenize.TokenError, SyntaxError)
# Numbers of a fixed size, least significant byte first; never objects.
_DTYPES = {"|b1", "|i1", "|u1", "<f2", "<f4", "<f8"}
_DTYPES |= {f"<{kind}{n}" for kind in "iu" for n in (2, 4, 8)}
_BLOCK = 1 << 22
# Rows that are worked on at a time where something is summed over all of them.
BLOCK = 1 << 16

Array: TypeAlias = np.ndarray  # may be mapped from a file
Sparse: TypeAlias = "sparse.csr_matrix"
_MOST_TEXT = 1 << 30  # no manifest or document of a model comes near


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an InputError that names it."""
    try:
        yield
    except InputError:
        raise
    except (*ERRORS, OSError) as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{file}: cannot be read ({text}). {REMEDY}") from error


def write_npy(file: Path, array: np.ndarray, first: int = 0, of: int | None = None) -> None:
    """Write an array of numbers; unlike with `numpy.save`, a full disk is named.

    Of an array of `of` rows, whose others are written by other processes, these are those from
    `first` on.
    """
    array = np.asarray(array, order="C")
    if array.dtype.str not in _DTYPES:
        raise TypeError(f"array {file.stem!r} has dtype {array.dtype}: only numbers are saved")
    whole, flags = array.shape, os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    if of is not None:
        whole, flags = (of, *array.shape[1:]), os.O_WRONLY | os.O_CREAT
    with open(os.open(file, flags, 0o666), "wb") as stream:
        header = {**np.lib.format.header_data_from_array_1_0(array), "shape": whole}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.seek(first * math.prod(array.shape[1:]) * array.itemsize, os.SEEK_CUR)
        stream.write(array.reshape(-1).view(np.uint8).data)


def npy_view(file: Path, content: np.ndarray) -> np.ndarray:
    """Return the array that the bytes of a ``.npy`` file hold, not copied."""
    with reading(file):
        stream = io.BytesIO(content[:10_000].tobytes())
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("no header of an array")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        data = content[stream.tell() :]
        if dtype.str not in _DTYPES or fortran:
            raise ValueError(f"dtype {dtype}, which is no plain number")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"shape {shape} of {dtype} does not take {len(data):,} bytes")
        if dtype.kind == "b" and data.max(initial=0) > 1:
            # NumPy counts on 0 and 1: by others it would take the wrong length for a mask.
            raise ValueError("truth values other than 0 and 1")
        return data.view(dtype).reshape(shape)


def map_bytes(file: Path, entry: Mapping[str, Any]) -> np.ndarray:
    """Map a file into memory; length and checksum must be those of the manifest."""
    if not file.is_file():
        raise InputError(f"{file}: listed in manifest.json but missing. {REMEDY}")
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise InputError(f"{file}: {size} bytes, manifest.json says {entry['bytes']}. {REMEDY}")
    with reading(file), pa.memory_map(str(file)) as source:
        content = np.frombuffer(source.read_buffer(), np.uint8)
    if hashlib.sha256(content.data).hexdigest() != entry["sha256"]:
        raise InputError(
            f"{file}: its content does not match the checksum in manifest.json. {REMEDY}"
        )
    return content


def parse_json(content: bytes | np.ndarray) -> Any:
    """Parse strict JSON, in which all numbers are finite."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    if len(content) > _MOST_TEXT:
        raise ValueError(f"{len(content):,} bytes, too long for a document")
    return json.loads(bytes(content).decode(), parse_constant=refuse)


def is_finite(array: np.ndarray) -> bool:
    """Tell whether an array has no NaN and no infinity, a block at a time."""
    flat = array.reshape(-1, order="A")[: None if array.dtype.kind == "f" else 0]
    return all(np.isfinite(flat[i : i + _BLOCK]).all() for i in range(0, flat.size, _BLOCK))


def checked_csr(
    label: str, arrays: Sequence[np.ndarray], shape: tuple[int, int]
) -> sparse.csr_matrix:
    """Make a sparse matrix of data, indices and indptr after checking every index in them."""
    from scipy import sparse

    data, indices, starts = arrays
    if (
        len(indices) != len(data)
        or data.dtype == np.float16  # SciPy fails with it, later
        or starts.shape != (shape[0] + 1,)
        or starts[0] != 0
        or starts[-1] != len(data)
        or (starts[1:] < starts[:-1]).any()  # a difference of hostile numbers may overflow
        or (len(data) and (indices.min() < 0 or indices.max() >= shape[1]))
    ):
        raise InputError(
            f"{label} is no sparse matrix of shape {shape}: an index is out of range, or the type "
            f"is wrong. {REMEDY}"
        )
    return sparse.csr_matrix((data, indices, starts), shape=shape, copy=False)


def csr_arrays(name: str, matrix: sparse.csr_matrix) -> dict[str, np.ndarray]:
    """Return the three arrays of a sparse matrix, in types that do not depend on its content."""
    narrow = np.int32 if matrix.shape[1] <= np.iinfo(np.int32).max else np.int64
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices.astype(narrow, copy=False),
        f"{name}_indptr": matrix.indptr.astype(np.int64, copy=False),
    }


def id_arrays(name: str, ids: pa.Array) -> dict[str, np.ndarray]:
    """Return ids as arrays: integers as they are, strings as UTF-8 and where each begins."""
    if pa.types.is_integer(ids.type):
        return {name: ids.to_numpy()}
    if not len(ids):
        ids = pa.array([""], ids.type).slice(0, 0)
    width = np.int32 if pa.types.is_string(ids.type) else np.int64
    _, offsets, text = ids.buffers()
    starts = np.frombuffer(offsets, width)[ids.offset : ids.offset + len(ids) + 1]
    text = np.frombuffer(text or b"", np.uint8)[starts[0] : starts[-1]]
    return {f"{name}_offsets": starts - starts[0], f"{name}_text": text}


def table_bytes(table: pa.Table) -> np.ndarray:
    """Return a table as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def checked_strings(file: Path, offsets: np.ndarray, text: np.ndarray) -> pa.Array:
    """Make strings of two arrays after checking that offsets are in range and the text is UTF-8."""
    with reading(file):
        if offsets.dtype.itemsize < 4 or text.dtype.itemsize > 1:
            raise ValueError(f"offsets are {offsets.dtype}, the text {text.dtype}")
        if not len(offsets) or offsets[-1] != len(text):
            raise ValueError("the offsets are not those of the text")
        type_ = pa.string() if offsets.dtype.itemsize == 4 else pa.large_string()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        strings = pa.Array.from_buffers(type_, len(offsets) - 1, buffers)
        strings.validate(full=True)
        return strings


def blocks(array: Array, size: int = BLOCK) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some rows at a time: where they are, and the rows."""
    for start in range(0, len(array), size):
        here = slice(start, min(start + size, len(array)))
        yield here, array[here]


def columns(matrix: Sparse, which: np.ndarray) -> Sparse:
    """Return some columns of a sparse matrix as rows."""
    return matrix.T.tocsr()[which]


def rows_of(matrix: Sparse, which: np.ndarray) -> Sparse:
    """Return some rows of a sparse matrix, which ascend; all are not copied."""
    return matrix if len(which) == matrix.shape[0] else matrix[which]


@dataclass(frozen=True, eq=False)
class Insertion:
    """Where new rows go among those there are.

    `order` has the rows that there are now, as positions in [rows before; new rows]: not always a
    permutation, since an entity that is given again takes its new row. `places` says where the rows
    before are now. Both are None where nothing is inserted.
    """

    order: np.ndarray | None = None
    places: np.ndarray | None = None

    @classmethod
    def of(cls, before: int, after: int, at: np.ndarray, added: np.ndarray) -> Insertion:
        """Find where new rows go: at `at`; those in `added` take no other row's place."""
        places = np.delete(np.arange(after), at[added])
        order = np.empty(after, np.int64)
        order[places] = np.arange(before)
        order[at] = before + np.arange(len(at))
        return cls(order, places)

    def __call__(self, rows: Any, new: Any, replace: bool = True) -> Any:
        """Insert new rows into an array or a sparse matrix.

        With `replace`, an entity that is given again takes its new row; otherwise it keeps its own.
        """
        order, places = self.order, self.places
        if order is None or places is None:
            return rows
        if not replace:
            order = order.copy()
            order[places] = np.arange(len(places))
        if isinstance(rows, np.ndarray):
            return np.concatenate([rows, new])[order]
        from scipy import sparse

        return sparse.vstack([rows, new], format="csr")[order]
