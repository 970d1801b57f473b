"""Runs the command `ferromq` for `python -m ferromq`."""

import sys

from ferromq.cli.main import main

sys.exit(main())
