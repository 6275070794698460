"""rankmon's own database: partials per bucket and slice, progress, leases."""

from monitor.store.lease import Lease
from monitor.store.store import Progress, Store, Written

__all__ = ["Lease", "Progress", "Store", "Written"]
