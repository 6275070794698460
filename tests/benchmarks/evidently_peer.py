"""Evidently's NDCG@10 as a process that answers: a line with a feed and a query in, a line with the mean out.

`python -m tests.benchmarks.evidently_peer URL`, by the Python of the environment that `evidently.txt` makes.
"""

from __future__ import annotations

import sys

import pandas as pd
from evidently import DataDefinition, Dataset, Recsys, Report
from evidently.metrics import NDCG

from tests.benchmarks.feeds import FEEDS

K = 10
_LISTS = DataDefinition(
    ranking=[
        Recsys(
            user_id="request_id", item_id="item_id", prediction="position", target="grade", recommendations_type="rank"
        )
    ]
)


def mean(frame: pd.DataFrame) -> float:
    """NDCG@10 over the requests with something relevant; Evidently also computes those for 1 to 9.

    The values come in the order of k; their ranks are one too high in 0.7.23.
    """
    found = Report([NDCG(k=K)]).run(Dataset.from_pandas(frame, data_definition=_LISTS), None)
    return float(found.dict()["metrics"][0]["value"]["value"][K - 1])


def main(url: str) -> None:
    """Answer each line of standard input."""
    feeds = {name: make(url) for name, make in FEEDS.items()}
    for line in sys.stdin:
        name, _, query = line.rstrip("\n").partition("\t")
        print(mean(feeds[name](query)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
