"""rankmon's own database: partials per bucket and slice, progress, leases, alerts."""

from monitor.store.history_cache import CachedStore
from monitor.store.lease import Lease
from monitor.store.retention import Holding
from monitor.store.store import Progress, Store, Written

__all__ = ["CachedStore", "Holding", "Lease", "Progress", "Store", "Written"]
