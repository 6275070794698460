"""Temporary files in memory: most tests commit to a database of their own, and to wait for a disk proves nothing."""

import os
import re
import shutil
import tempfile
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
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)  # which Python has looked up by now


def _available() -> int:
    """Bytes of memory that are free or hold only what is on a disk too."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
