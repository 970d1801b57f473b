"""The options of a broker for transactions: check-backs of open half messages."""

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from ferromq.config.keys import BOOLEAN, MILLISECONDS, WHOLE, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import check_positive

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(Config):
    """The options of a broker for transactions."""

    transaction_timeout: timedelta = timedelta(seconds=6)
    """How long a transaction may stay open before the first check-back; a message may set its own time."""
    transaction_check_interval: timedelta = timedelta(seconds=30)
    """How often the broker checks back open transactions."""
    transaction_check_max: int = 15
    """Check-backs of a transaction before it is given up and kept in TRANS_CHECK_MAX_TIME_TOPIC."""
    reject_transactions: bool = False
    """Whether half messages are refused."""

    properties: ClassVar[Keys] = {
        "transactionTimeOut": Key("transaction_timeout", MILLISECONDS),
        "transactionCheckInterval": Key("transaction_check_interval", MILLISECONDS),
        "transactionCheckMax": Key("transaction_check_max", WHOLE),
        "rejectTransactionMessage": Key("reject_transactions", BOOLEAN),
    }

    def __post_init__(self) -> None:
        check_positive("transaction_timeout", self.transaction_timeout, timedelta())
        check_positive("transaction_check_interval", self.transaction_check_interval, timedelta())
        check_positive("transaction_check_max", self.transaction_check_max, 0)
