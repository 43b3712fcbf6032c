"""CSV files: read whole, or looked through once and then streamed, in bounded memory."""

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyarrow import csv, fs

# Bytes that are parsed at once.
_BLOCK = 1 << 22
# How pyarrow says that a value is not of the type of the values before it.
_MISFIT = re.compile(r"In CSV column #(\d+).*CSV conversion error to", re.S)


def read_csv(path: str, filesystem: fs.FileSystem) -> pa.Table:
    """Read a file whole."""
    # Types are inferred from the first block. If they do not fit the rows that follow (numbers
    # that turn into text), the whole file is one block.
    try:
        return _read(path, filesystem, _BLOCK)
    except pa.ArrowException as error:
        if _MISFIT.search(str(error)) is None:
            raise
    return _read(path, filesystem, (1 << 31) - 1)


def _read(path: str, filesystem: fs.FileSystem, block: int) -> pa.Table:
    with filesystem.open_input_stream(path) as stream:
        options = csv.ReadOptions(block_size=block)
        return csv.read_csv(stream, read_options=options, convert_options=_convert())


def look_through(path: str, filesystem: fs.FileSystem) -> tuple[pa.Schema, int]:
    """Return the columns of a file, with types that all of its rows have, and how many rows.

    Types are inferred from the first block, and widened where a later row has another: whole
    numbers to numbers, all else to text.
    """
    types: dict[str, pa.DataType] = {}
    while True:
        with _open(path, filesystem, types) as reader:
            try:
                return reader.schema, sum(batch.num_rows for batch in reader)
            except pa.ArrowException as error:
                misfit = _MISFIT.search(str(error))
                if misfit is None:
                    raise
                field = reader.schema.field(int(misfit.group(1)))
                if pa.types.is_string(field.type):
                    raise
                whole = pa.types.is_integer(field.type)
                types[field.name] = pa.float64() if whole else pa.string()


def stream(
    path: str, filesystem: fs.FileSystem, schema: pa.Schema, columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Read some columns of a file, at most so many rows at a time."""
    types = {field.name: field.type for field in schema}
    with _open(path, filesystem, types, columns) as reader:
        for batch in reader:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def common(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of several files of the same columns, with types that hold all of them."""
    return pa.schema(
        [(name, _common([s.field(name).type for s in schemas])) for name in schemas[0].names]
    )


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    distinct = set(types) - {pa.null()}
    if len(distinct) < 2:
        return distinct.pop() if distinct else pa.null()
    return pa.float64() if distinct == {pa.int64(), pa.float64()} else pa.string()


def _open(
    path: str,
    filesystem: fs.FileSystem,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None = None,
) -> csv.CSVStreamingReader:
    return csv.open_csv(
        filesystem.open_input_stream(path),
        read_options=csv.ReadOptions(block_size=_BLOCK),
        convert_options=_convert(types, columns),
    )


def _convert(
    types: Mapping[str, pa.DataType] | None = None, columns: Sequence[str] | None = None
) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        column_types=dict(types or {}),
        include_columns=list(columns) if columns is not None else None,
    )
