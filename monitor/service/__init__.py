"""The daemon: cycles, scheduler, runners and snapshots."""
