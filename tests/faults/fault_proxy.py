"""The faults of a peer, for tests that try each of them. The proxy is in the package: users' tests have it, too."""

from collections.abc import Callable

from ferromq.testing.fault_proxy import FaultProxy

__all__ = ["FAULTS", "Fault", "FaultProxy"]

Fault = Callable[[FaultProxy], None]
FAULTS: dict[str, Fault] = {
    "hang": FaultProxy.hang,
    "refuse": FaultProxy.refuse,
    "cut": FaultProxy.cut,
    "half_answer": lambda proxy: proxy.half_answer(5),
}
"""A peer's fault: it hangs, it is gone, its answer is lost, its answer ends in the middle."""
