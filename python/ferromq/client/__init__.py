"""
The client: `Producer` and `Consumer` over gRPC, synchronous. The same names with `await` are in `ferromq.aio`.

What is said to the server, in which order, and what an answer means is written once, without I/O, in `core.plans`;
`connection` here and `aio._connection` there carry it out.
"""

import os

# Read by grpcio when it is imported, and its core when first used. Without it a child that a fork makes while calls are
# under way aborts in grpc's mutex, or waits for threads it does not have; with it, the child starts grpc anew.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")
