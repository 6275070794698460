"""Drift verdicts: stored partials of one measure, hour by hour, judged against a baseline that they themselves gave."""

VERSION = 25
"""Of how steps are judged. A change that could make another verdict raises it, and all verdicts are judged again."""
