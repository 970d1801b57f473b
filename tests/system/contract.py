"""
The contract: tests of what clients promise on each way to a broker. All others run once, or for both interfaces.

A way is one of the shells of `consumer_shells.WAYS`: the clients of `ferromq` and of `ferromq.aio` over the network,
both over TLS, and both with an embedded broker, which they call without a socket. A test of the contract has the
mark `EACH_WAY`; its argument `shell` is a consumer of that way, and `shell.producer` its producer. It belongs here if a
way could break it: what only the interface decides needs no second way.

The verbs of any server are tests of one more class, `verbs.Verbs`: they run behind name servers, and at RocketMQ's.
"""

import pytest
from consumer_shells import WAYS

EACH_WAY = pytest.mark.parametrize("shell", WAYS, ids=lambda shell: shell.kind)

FILES = {
    "send, send_all, submit": "test_client_send.py",
    "message groups, delays, recalls, transactions": "test_client_kinds.py",
    "request, reply": "test_client_requests.py",
    "values, pull": "test_payloads.py",
    "receive": "test_client_receive.py",
    "receive_many, give_back": "test_fetched_sets.py",
    "ack, flush, changes of leases": "test_acknowledgements.py",
    "iteration": "test_iteration.py",
    "run, dead letters": "test_verdicts.py",
    "pause, resume": "test_pause.py",
    "close": "test_closed_clients.py",
}
"""What is promised, and the file of its tests."""
