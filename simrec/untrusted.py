"""Readers of files that anybody may have made: nothing in them is believed before it is checked.

No reader runs code, takes more memory than the file's size allows, or returns an array that points
outside of its buffer. What is wrong with a file is an InputError that names it.
"""

import io
import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from simrec.errors import InputError

# Numbers of a fixed size in the byte order of this machine's kind; never objects.
DTYPES = {"|b1", "|i1", "|u1", *(f"<{kind}{n}" for kind in "iu" for n in (2, 4, 8))}
DTYPES |= {"<f2", "<f4", "<f8"}
# Everything that readers of hostile bytes were seen to raise.
ERRORS = (
    pa.ArrowException,
    zipfile.BadZipFile,
    struct.error,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    EOFError,
    OverflowError,
    RuntimeError,
    MemoryError,
)
_NPY_HEADER = re.compile(
    rb"\{'descr': '([^']+)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \} *\n"
)
_BLOCK = 1 << 22
# No manifest or document of a model comes near.
_MOST_TEXT = 1 << 30


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (*ERRORS, OSError) as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{file}: cannot be read ({text}). Restore the file from a copy, or train the model "
            "again."
        ) from error


def read_npy(file: Path, mmap: bool = True) -> np.ndarray:
    """Read an array of numbers, or map it into memory."""
    with _reading(file), open(file, "rb") as stream:
        dtype, shape, order = _npy_header(stream, os.fstat(stream.fileno()).st_size)
        if mmap and 0 not in shape:
            return np.memmap(file, dtype, "r", stream.tell(), shape, order)
        return _npy_data(stream, dtype, shape, order)


def file_buffer(file: Path, mmap: bool = True) -> pa.Buffer:
    """Return the bytes of a file, mapped into memory or read."""
    with _reading(file):
        if mmap and file.stat().st_size:
            with pa.memory_map(str(file)) as source:
                return source.read_buffer()
        return pa.py_buffer(file.read_bytes())


@dataclass(frozen=True)
class NpyLayout:
    """Where the numbers of an array are in its file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    offset: int

    def array(self, buffer: pa.Buffer) -> np.ndarray:
        """Return the array that the file holds, not copied."""
        return np.ndarray(self.shape, self.dtype, memoryview(buffer), self.offset, order=self.order)


def npy_layout(file: Path, buffer: pa.Buffer) -> NpyLayout:
    """Read the header of an array whose file has these bytes."""
    with _reading(file), pa.BufferReader(buffer) as stream:
        dtype, shape, order = _npy_header(stream, buffer.size)
        return NpyLayout(dtype, shape, order, stream.tell())


def read_npz(file: Path) -> list[np.ndarray]:
    """Read the arrays of an archive by their names in ascending order; nothing is unpacked."""
    with _reading(file), zipfile.ZipFile(file) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.filename)
        sizes = [entry.file_size for entry in entries]
        if any(e.compress_type != zipfile.ZIP_STORED or e.flag_bits & 1 for e in entries):
            raise InputError(f"{file}: compressed or encrypted, which SimRec never writes")
        if sum(sizes) > file.stat().st_size:
            raise InputError(f"{file}: claims {sum(sizes):,} bytes, more than it has")
        arrays = []
        for entry, size in zip(entries, sizes, strict=True):
            stream = io.BytesIO(archive.read(entry))
            arrays.append(_npy_data(stream, *_npy_header(stream, size)))
        return arrays


def _npy_header(stream: Any, size: int) -> tuple[np.dtype, tuple[int, ...], Any]:
    """Read the header of an array; its dtype is on the list, its data are the rest of the file."""
    start = stream.read(10)
    text = stream.read(int.from_bytes(start[8:], "little"))
    # By pattern: NumPy's own reader evaluates the text as Python literals.
    match = _NPY_HEADER.fullmatch(text) if start[:8] == b"\x93NUMPY\x01\x00" else None
    if match is None:
        raise ValueError("no header of an array")
    kind, order, lengths = (group.decode() for group in match.groups())
    if kind not in DTYPES:
        raise ValueError(f"dtype {kind!r}, which is no plain number")
    dtype, shape = np.dtype(kind), tuple(map(int, lengths.replace(",", " ").split()))
    expected, found = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if expected != found:
        raise ValueError(f"shape {shape} of {dtype} takes {expected:,} bytes, it has {found:,}")
    return dtype, shape, "F" if order == "True" else "C"


def _npy_data(stream: Any, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    array = np.empty(shape, dtype, order)
    flat = array.reshape(-1, order=order).view(np.uint8)
    if stream.readinto(flat.data) != flat.size:
        raise EOFError("ends too early")
    return array


def read_arrow(file: Path, mmap: bool = True) -> pa.Table:
    """Read a table of plain columns from an Arrow file, or map it into memory."""
    return parse_arrow(file, file_buffer(file, mmap))


def parse_arrow(file: Path, buffer: pa.Buffer) -> pa.Table:
    """Read a table of plain columns from the bytes of an Arrow file."""
    with _reading(file):
        if buffer.slice(0, 6).to_pybytes() != b"ARROW1":
            raise ValueError("not an Arrow file")
        # After eight bytes the file is a stream of messages, looked at one by one before they are
        # read; the footer, which could point elsewhere, has no say.
        stream = buffer.slice(8)
        for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
            if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
                raise ValueError("compressed, which SimRec never writes")
        with pa.ipc.open_stream(pa.BufferReader(stream)) as reader:
            for field in reader.schema:
                kind = field.type
                text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
                if not (text or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                    raise ValueError(f"column {field.name!r} is {kind}")
            table = reader.read_all()
        # Offsets into the buffers, and whether strings are UTF-8.
        table.validate(full=True)
        return table


def _is_compressed(metadata: bytes) -> bool:
    """Tell whether the header of a record batch (a flatbuffer) has the field of compression."""

    def field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        (size,) = struct.unpack_from("<H", metadata, vtable)
        if 4 + 2 * number >= size:
            return 0
        (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
        return table + offset if offset else 0

    (message,) = struct.unpack_from("<I", metadata, 0)
    header = field(message, 2)
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return bool(field(batch, 3))


def read_json(file: Path) -> Any:
    """Read a document of strict JSON."""
    with _reading(file):
        return parse_json(read_text(file))


def read_text(file: Path) -> str:
    """Read a text file of bounded size."""
    if file.stat().st_size > _MOST_TEXT:
        raise InputError(f"{file}: {file.stat().st_size:,} bytes, too long for a document")
    return file.read_text(encoding="utf-8")


def parse_json(text: str) -> Any:
    """Parse strict JSON, in which all numbers are finite."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def is_finite(array: np.ndarray) -> bool:
    """Tell whether an array has no NaN and no infinity, a block at a time."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1, order="A")
    return all(np.isfinite(flat[i : i + _BLOCK]).all() for i in range(0, flat.size, _BLOCK))
