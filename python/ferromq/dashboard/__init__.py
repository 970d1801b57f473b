"""
The dashboard: pages about a cluster for a browser, served by `ferromq dashboard`.

It asks the cluster through `ferromq.aio.Admin` alone. `Dashboard` serves it; `views` has the pages. It needs the extra
`ferromq[dashboard]`.
"""

from ferromq.dashboard.server import Dashboard
from ferromq.dashboard.settings import Settings

__all__ = ["Dashboard", "Settings"]
