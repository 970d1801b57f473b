"""
The parts of the control plane for transactions, put together: what is known of half messages, who ends them, who asks.

Which request goes where is listed in `rpc`.
"""

from collections.abc import Callable

from ferromq._ferromq import Server, Store
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.transactions.check_back import TransactionChecker
from ferromq.broker.transactions.check_requests import CheckSender
from ferromq.broker.transactions.end_transaction import TransactionEnder
from ferromq.broker.transactions.half_message_index import HalfMessageIndex
from ferromq.config.broker import BrokerConfig
from ferromq.process.clock import Clock, Timer


class TransactionComponents:
    """Makes them, and lets rounds of check-back come."""

    def __init__(
        self, config: Callable[[], BrokerConfig], server: Server, store: Store, *, clients: ClientTable, clock: Clock
    ) -> None:
        """Find out from *store* which half messages are open."""
        halves = HalfMessageIndex(store)

        def is_slave() -> bool:
            return config().membership.is_slave

        self._halves = halves
        self.ends = TransactionEnder(store, halves, is_slave=is_slave, count_put=server.count_put)
        self.checks = TransactionChecker(
            store,
            halves,
            CheckSender(server, config().name, clients),
            config=lambda: config().transactions,
            is_slave=is_slave,
            now_ms=clock.now_ms,
        )
        interval = config().transactions.transaction_check_interval
        self._timer = Timer("ferromq-transactions", clock, interval, self.checks.round)

    def start(self) -> None:
        """Let rounds come from now on."""
        self._timer.start()

    def stop(self) -> None:
        """Let no more come, and end the one under way."""
        self.checks.stop()
        self._timer.stop()

    def counts(self) -> dict[str, str]:
        """Return what `brokerStatus` prints of transactions; all but the open ones count from the start."""
        total = self.checks.total
        return {
            "transactionHalfOpen": str(self._halves.count_open()),
            "transactionChecked": str(total.asked),
            "transactionCheckedUnreachable": str(total.unasked),
            "transactionCheckRefused": str(total.refused),
            "transactionDiscarded": str(total.discarded),
            "transactionHalfLost": str(total.lost),
        }

    def options_changed(self, changed: frozenset[str], after: BrokerConfig) -> None:
        """Keep to options that changed."""
        if "transaction_check_interval" in changed:
            self._timer.every(after.transactions.transaction_check_interval)
