"""New versions, baselines and announcements become PagerDuty change events: each once, and no old or future ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.conditions.checkpoint import Announcement, BaselineReset
from monitor.evaluation.notices import Recipients
from monitor.notify.pagerduty import PagerDutyConfig
from monitor.service.due_notices import DueNotices, due_changes
from monitor.service.fall import marks_of
from monitor.service.sender import Sender
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from monitor.types import FARTHEST, MODEL_VERSION, Slice
from tests.support.monitors import config, new_store
from tests.support.pages import DAY, START, fell, fill, watched
from tests.support.services import ROUTING_KEY, PagerDutyDouble
from tests.support.tallies import HOUR

END = START + 20 * DAY
MONITOR = replace(watched("search", notify=("pd",)), slices=(Slice(MODEL_VERSION, "version"),))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """v1 serves from the start, v2 from a week before the end, v3 from a day before the end."""
    made = new_store(database_url, 20)
    began = {"v1": START, "v2": END - 7 * DAY, "v3": END - DAY}
    none = fell(0, 0)
    fill(
        made,
        MONITOR,
        range(START, END, HOUR),
        lambda start, version: none(start, version) if start >= began[version] else None,
        ("v1", "v2", "v3"),
        dimension=MODEL_VERSION,
    )
    yield made
    made.close()


def test_each_recent_change_is_sent_once(store: Store, tmp_path: Path) -> None:
    double = PagerDutyDouble()
    pd = PagerDutyConfig("pd", routing_key=ROUTING_KEY, url=double.receiver.url)
    made = config(tmp_path, {"shop": "sqlite://"}, [MONITOR], channels=(pd,))
    store.verdicts.begin_baseline("search", BaselineReset(END - HOUR, "ada", "accepted", None), 1.0)
    for since, note in ((END - 3 * DAY, "old sale"), (END - 2 * HOUR, "sale"), (END + DAY, "not yet")):
        store.verdicts.announce("search", Announcement(since, since + HOUR, "ada", note, False), 1.0)
    recipients = Recipients({"pd": ("pd",), "log": ("log",)}, "https://mon.test/")
    for _ in range(3):
        DueNotices(store, "due", lambda _: due_changes(store, made, recipients, END), lambda: None, lambda: 1e9).run()
    sender = Sender(store, Telemetry())
    sender.use(pd.receivers())
    sender.start()
    assert sender.settle(20)
    sender.stop()
    double.receiver.close()
    assert sorted(double.changes) == ["search: new baseline: accepted", "search: sale", "search: version v3"]
    assert double.alerts == {}


def test_the_first_version_is_not_a_change(store: Store) -> None:
    assert [m.words for m in marks_of(MONITOR, store, START - DAY, FARTHEST)] == ["version v2", "version v3"]
    assert marks_of(MONITOR, store, END - DAY + HOUR, FARTHEST) == ()
