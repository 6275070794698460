"""A machine's clock that is wrong for one process: a library loaded before all others shifts it by a file's seconds.

What waits goes by the monotonic clock, which stays right, so that a process lives through a jump as on a real machine.
"""

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t got = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    return got > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && which == CLOCK_REALTIME) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (into) *into = found.tv_sec;
    return found.tv_sec;
}
"""


class ShiftedClock:
    """A clock that is set by `set`, for processes that get `environment`."""

    def __init__(self, folder: Path) -> None:
        """Build the library in a folder; see `has_compiler`."""
        source, self._library, self._file = folder / "shift.c", folder / "shift.so", folder / "shift"
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True)
        self.set(0)

    def set(self, seconds: int) -> None:
        """So many seconds ahead of the machine's own clock, from now on."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that goes by it."""
        return {**os.environ, "LD_PRELOAD": str(self._library), "CLOCK_SHIFT": str(self._file)}


def has_compiler() -> bool:
    """Whether there is a C compiler."""
    return shutil.which("cc") is not None
