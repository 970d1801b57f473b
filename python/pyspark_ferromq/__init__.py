"""
Spark 4 finds `format("ferromq")` by this module's name and its `DefaultSource`; all else is in `ferromq.spark`.

Spark imports it in every application whose Python has ferromq installed, so it loads no more than the class.
"""

from ferromq.spark.source import FerromqSource as DefaultSource

__all__ = ["DefaultSource"]
