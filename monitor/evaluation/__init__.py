"""Evaluation: one fold over final hours, incidents from its events, notifications from incidents."""
