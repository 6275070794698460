"""What people are told of: rules, verdicts and late arrivals, with their evidence and their words. Pure."""
