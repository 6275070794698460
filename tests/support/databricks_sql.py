"""What rankmon would send to Databricks, as JSON on the standard output: statements with their values in place.

Run by the Python of `make spark`, in whose environment Databricks' dialect is.
"""

import json
import sys
from dataclasses import replace

from sqlalchemy.engine import make_url

from monitor.measures.measure import parse
from monitor.source.choice import in_full
from monitor.source.queries import Queries
from monitor.source.summing import Summing
from monitor.types import Column, Events
from tests.support.large import HOUR, MONITOR, START

URL = "databricks://token:secret@host?http_path=/sql&catalog=main&schema=default"


def main() -> None:
    """The statements of a monitor of clicks, by both ways, and of one of a column of grades."""
    dialect = make_url(URL).get_dialect()()
    measures = tuple(map(parse, ("ndcg@10", "ndcg(ideal=local)@2", "dcg", "mrr", "rbp(p=0.5)", "ctr@2", "recall@5")))
    clicks = replace(MONITOR, measures=measures)
    span, found = (START, START + 24 * HOUR), []
    for made in (clicks, replace(clicks, recipe=Column("position"))):
        queries = Queries(made, dialect)
        recipe = made.recipe
        found += [queries.newest(*span), queries.requests(*span), Summing(queries).cells(*span)]
        found.append(
            queries.event_rows(recipe, *span) if isinstance(recipe, Events) else queries.graded_rows(*span, True)
        )
    json.dump([in_full(statement, dialect) for statement in found], sys.stdout)


if __name__ == "__main__":
    main()
