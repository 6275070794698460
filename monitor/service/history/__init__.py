"""The recent past of a monitor, to be drawn: its series, and what verdicts said."""

from monitor.service.history.compared import Compared, Comparison, compare
from monitor.service.history.judged import JudgedTrail, Spell, judged_onward
from monitor.service.history.series import Trail, TrailPoint, extended

__all__ = [
    "Compared",
    "Comparison",
    "JudgedTrail",
    "Spell",
    "Trail",
    "TrailPoint",
    "compare",
    "extended",
    "judged_onward",
]
