"""
The stream reader of the data source `ferromq`: which offsets a trigger reads, and its batches.

Spark keeps the offsets, in its checkpoint; here is nothing that a restart would miss. So that each range a batch reads
has both ends there, a place to begin at (of a new query, of a new queue, after a loss) is an end first: of a batch
without rows of that queue. Only Trigger.Once, which has one batch, and PySpark 4.1, which does not tell the start, read
from such a place at once.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ferromq.errors import ConfigError, DataLost
from ferromq.spark import plan, pull
from ferromq.spark.source import QueuePartition
from ferromq.spark.stream_options import StreamOptions
from ferromq.spark.stream_plan import (
    ALL,
    Flat,
    Loss,
    Offsets,
    Place,
    ends,
    flat,
    limited,
    losses,
    nested,
    settled,
    spans,
    waiting,
)
from ferromq.spark.stream_read import read_patiently
from ferromq.spark.stream_watch import Patience, View, Watch

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2
    HAS_ADMISSION = False
    _BASES: tuple[type, ...] = (DataSourceStreamReader,)
else:
    HAS_ADMISSION = True
    _BASES = (DataSourceStreamReader, SupportsTriggerAvailableNow)

_log = logging.getLogger("ferromq.spark")

_NAMED = 10
