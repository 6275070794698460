"""The pure heart: measures, relevance, partials, windows. No clock, file, database or logging in here."""
