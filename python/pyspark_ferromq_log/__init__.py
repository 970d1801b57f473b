"""
Spark 4 finds `format("ferromq-log")` by this module's name and its `DefaultSource`; all else is in `ferromq.spark`.

Spark imports it in every application whose Python has ferromq installed, so it loads no more than the class.
"""

from ferromq.spark.log.source import FerromqLogSource as DefaultSource

__all__ = ["DefaultSource"]
