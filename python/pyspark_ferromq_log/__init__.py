"""
Lets Spark 4 find `format("ferromq-log")` by this module's name and its `DefaultSource`.

Spark imports this module in every application whose Python has ferromq, so it loads only the class.
"""

from ferromq.spark.log.source import FerromqLogSource as DefaultSource

__all__ = ["DefaultSource"]
