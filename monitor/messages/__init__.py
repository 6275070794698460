"""Notifications and their words. Pure."""
