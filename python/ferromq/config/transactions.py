"""
The options of a broker for transactions: when producers are asked about half messages that are still open.

`config` hands them on as part of a broker's; RocketMQ's keys for them are here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.reader import Config
from ferromq.config.values import boolean, check_positive, whole

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(Config):
    """The options of a broker for transactions."""

    transaction_timeout: timedelta = timedelta(seconds=6)
    """How long a producer has to end a transaction before it is asked; a message may say otherwise."""
    transaction_check_interval: timedelta = timedelta(seconds=30)
    """How often producers are asked about open transactions."""
    transaction_check_max: int = 15
    """How often one transaction is asked about before it is given up, and kept in TRANS_CHECK_MAX_TIME_TOPIC."""
    reject_transactions: bool = False
    """Whether half messages are refused."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "transactionTimeOut": lambda text: {"transaction_timeout": whole(text) * _MILLISECOND},
        "transactionCheckInterval": lambda text: {"transaction_check_interval": whole(text) * _MILLISECOND},
        "transactionCheckMax": lambda text: {"transaction_check_max": whole(text)},
        "rejectTransactionMessage": lambda text: {"reject_transactions": boolean(text)},
    }

    def __post_init__(self) -> None:
        check_positive("transaction_timeout", self.transaction_timeout, timedelta())
        check_positive("transaction_check_interval", self.transaction_check_interval, timedelta())
        check_positive("transaction_check_max", self.transaction_check_max, 0)
