"""
Makes the components for transactions: the index of half messages, and what ends and checks transactions.

`rpc` lists which request each one answers.
"""

from collections.abc import Callable

from ferromq._ferromq import Request, Server, Store
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.transactions.check_back import TransactionChecker
from ferromq.broker.transactions.check_requests import CheckSender
from ferromq.broker.transactions.end_transaction import TransactionEnder
from ferromq.broker.transactions.half_message_index import HalfMessageIndex
from ferromq.config.broker import BrokerConfig
from ferromq.process.clock import Clock, Timer


class TransactionComponents:
    """The components for transactions; runs the check-back rounds."""

    def __init__(
        self, config: Callable[[], BrokerConfig], server: Server, store: Store, *, clients: ClientTable, clock: Clock
    ) -> None:
        """Read the open half messages from *store*."""
        halves = HalfMessageIndex(store)

        def is_slave() -> bool:
            return config().membership.is_slave

        def allows(request: Request, topic: str, action: str) -> bool:
            needs_no_policy = not config().access.needs_policy(request.route)
            return needs_no_policy or server.allows(request.user, request.peer, topic, action)

        self._halves = halves
        self.ends = TransactionEnder(store, halves, is_slave=is_slave, count_put=server.count_put, allows=allows)
        self.checks = TransactionChecker(
            store,
            halves,
            CheckSender(server, config().name, clients, config().access.needs_nothing),
            config=lambda: config().transactions,
            is_slave=is_slave,
            now_ms=clock.now_ms,
            allows=allows,
        )
        interval = config().transactions.transaction_check_interval
        self._timer = Timer("ferromq-transactions", clock, interval, self.checks.round)

    def start(self) -> None:
        """Start the rounds."""
        self._timer.start()

    def stop(self) -> None:
        """Stop the rounds, and end the running one."""
        self.checks.stop()
        self._timer.stop()

    def counts(self) -> dict[str, str]:
        """Return the counts that `brokerStatus` prints; all but the open transactions count from the start."""
        total = self.checks.total
        return {
            "transactionHalfOpen": str(self._halves.count_open()),
            "transactionChecked": str(total.sent),
            "transactionCheckedUnreachable": str(total.unreachable),
            "transactionCheckRefused": str(total.skipped),
            "transactionDiscarded": str(total.discarded),
            "transactionHalfLost": str(total.lost),
        }

    def options_changed(self, changed: frozenset[str], after: BrokerConfig) -> None:
        """Apply changed options."""
        if "transaction_check_interval" in changed:
            self._timer.every(after.transactions.transaction_check_interval)
