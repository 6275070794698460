"""Evaluation: one fold over final hours, incidents from its events, notifications from incidents."""

from __future__ import annotations

from monitor.evaluation.fold import CHANGED, GOES_ON, GONE
from monitor.evaluation.incidents import RESTATED
from monitor.evaluation.run import REMOVED, Hindsight, StoredHours, judge, judge_past, withdraw
from monitor.evaluation.telling import Telling

__all__ = [
    "CHANGED",
    "GOES_ON",
    "GONE",
    "REMOVED",
    "RESTATED",
    "Hindsight",
    "StoredHours",
    "Telling",
    "judge",
    "judge_past",
    "withdraw",
]
