"""A monitor of the large logs that an engine makes by itself: lists of twenty items, and clicks on some of them."""

from datetime import UTC, datetime

from monitor.measures.measure import parse
from monitor.types import EventRule, Events, Monitor, Position, Rankings, Relation, Slice, TimeColumn

LENGTH = 20
"""Items in each list."""

HOUR = 3600
START = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())

MONITOR = Monitor(
    name="spark",
    source="spark",
    rankings=Rankings(
        Relation(("rankings",)), "request_id", "item_id", Position("position"), TimeColumn("served_at", "native", "UTC")
    ),
    recipe=Events(
        Relation(("events",)),
        "request_id",
        "item_id",
        TimeColumn("occurred_at", "native", "UTC"),
        (EventRule(1, "click"),),
        attribution=1800,
        type="type",
    ),
    measures=(parse("ndcg@10"), parse("mrr@10")),
    slices=(Slice("device", "device"),),
    bucket=HOUR,
)
