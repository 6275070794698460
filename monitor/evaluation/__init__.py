"""Judging what is stored: windows -> conditions -> incidents -> notifications, all of it stored at once.

It walks over the final buckets that no judgement has seen yet, so it makes no difference whether they came one by one
from a daemon or all at once from a backfill. What is decided there depends on nothing but what is stored. Whether
somebody is told depends on `now` as well: only of what is open now, and only by a daemon that is up to date.
"""

from __future__ import annotations

from monitor.evaluation.removal import withdraw
from monitor.evaluation.telling import Telling
from monitor.evaluation.views import Views
from monitor.evaluation.windows import Hindsight, judge, judge_past
from monitor.evaluation.work import CHANGED, GOES_ON, GONE, REMOVED, RESTATED

__all__ = [
    "CHANGED",
    "GOES_ON",
    "GONE",
    "REMOVED",
    "RESTATED",
    "Hindsight",
    "Telling",
    "Views",
    "judge",
    "judge_past",
    "withdraw",
]
