"""
The client: `Producer` and `Consumer` over gRPC, synchronous. The same names with `await` are in `ferromq.aio`.

What is said to the server, in which order, and what an answer means is written once, without I/O, in `_plans`;
`_connection` here and `aio._connection` there carry it out.
"""
