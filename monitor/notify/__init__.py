"""Telling people: one file a channel, and the sender that takes notifications out of the outbox."""
