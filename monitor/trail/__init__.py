"""The recent past of a monitor, to be drawn: its series, and what verdicts said."""

from monitor.trail.compared import Compared, Comparison, compare
from monitor.trail.judged import JudgedTrail, Spell, judged_onward
from monitor.trail.series import Trail, TrailPoint, extended

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
