"""Drift verdicts: stored partials of one measure, hour by hour, judged against a baseline that they themselves gave."""
