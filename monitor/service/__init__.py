"""The daemon: cycle, scheduler, runner, snapshots."""
