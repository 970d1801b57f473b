"""
What a client decides, without I/O: plans of requests, batches, retries, routes.

`client`, `aio`, `spark` and `pipeline` carry the plans out.
"""
