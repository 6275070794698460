"""The recent past of a monitor, to be drawn: its series, and what verdicts said."""

from monitor.trail.judged import JudgedTrail, Spell, judged_onward
from monitor.trail.series import Comparison, Trail, TrailPoint, compare, extended

__all__ = [
    "Comparison",
    "JudgedTrail",
    "Spell",
    "Trail",
    "TrailPoint",
    "compare",
    "extended",
    "judged_onward",
]
