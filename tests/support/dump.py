"""A store's contents as plain values, without what differs between two honest runs: row numbers and read times."""

import sqlalchemy as sa

from monitor.series.partials import FIELDS, TRAFFIC_FIELDS
from monitor.store import Store

_NAMES = """
    series.monitor, series.kernel, series.definition, slices.dimension, slices.value, buckets.bucket_start
    FROM {table} t JOIN buckets ON buckets.id = t.bucket_id JOIN series ON series.id = buckets.series_id
    JOIN slices ON slices.id = t.slice_id WHERE {which}
"""

Rows = dict[tuple[object, ...], tuple[object, ...]]


def dump(store: Store) -> dict[str, Rows]:
    """Table -> key -> values."""
    columns = {
        "partials": [*(f"t.{f}" for f in FIELDS), "buckets.final"],
        "traffic": [*(f"t.{f}" for f in TRAFFIC_FIELDS), "buckets.final"],
        "refusals": ["t.reason", 't."rows"'],
    }
    found: dict[str, Rows] = {}
    with store.reading() as connection:
        for table, wanted in columns.items():
            extra = 1 if table == "refusals" else 0
            names = _NAMES.format(table=table, which="true" if extra else "buckets.seconds = 0")
            rows = connection.execute(sa.text(f"SELECT {', '.join(wanted)}, {names}")).all()
            found[table] = {(*r[len(wanted) :], *r[:extra]): tuple(r[extra : len(wanted)]) for r in rows}
            assert len(found[table]) == len(rows), "a key stands twice"
        named = connection.execute(sa.text("SELECT monitor, dimension, value FROM slices")).all()
        found["slices"] = {tuple(r): () for r in named}
    return found


def differences(one: dict[str, Rows], other: dict[str, Rows]) -> list[str]:
    """What differs: keys exactly, counts exactly, sums beyond 1e-12 relative."""
    found = []
    for table in one:
        found += [f"{table}: only here {k}" for k in one[table].keys() - other[table].keys()]
        found += [f"{table}: only there {k}" for k in other[table].keys() - one[table].keys()]
        for key in one[table].keys() & other[table].keys():
            a, b = one[table][key], other[table][key]
            if not all(_same(x, y) for x, y in zip(a, b, strict=True)):
                found.append(f"{table} {key}: {a} != {b}")
    return found


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-12 * max(abs(a), abs(b))
    return a == b
