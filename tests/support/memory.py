"""Temporary files in memory: most tests commit to a database of their own, and to wait for a disk proves nothing."""

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes. A whole run holds 1 GB at a time."""


def keep_temporary_files_in_memory() -> None:
    """Of this process and those that it starts; not where TMPDIR is set, or memory is short or mounted noexec."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC or min(shutil.disk_usage(MEMORY).free, _available()) < ROOM:
        return
    os.environ["TMPDIR"] = str(MEMORY)


def _available() -> int:
    """Bytes of memory that are not in use; a limit of the container's is in the size of /dev/shm as a rule."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
