"""Parquet -> `Sheet`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from monitor.database_url import how_to_install
from monitor.errors import InputError
from monitor.scoring.files import unreadable
from monitor.scoring.sheets import Column, Sheet


def read_parquet(path: Path, wanted: set[str]) -> Sheet:
    """The file's `wanted` columns, dictionaries unfolded.

    Raises:
        InputError: pyarrow is not installed, or the file is no Parquet.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow; {how_to_install('parquet')}") from None
    try:
        file = parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
        table = file.read(columns=[name for name in names if name in wanted])
    except pa.ArrowException as error:
        raise unreadable(path, error) from None
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = pd.Series(column.to_pandas())
        columns[name] = Column(values, column.is_null().to_numpy())
    return Sheet(path, names, file.metadata.num_rows, columns, None)
