"""Notifications and the words they are made of. Pure."""
