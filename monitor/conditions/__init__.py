"""Rules, verdicts and late arrivals as conditions, with their evidence and their words. Pure."""
