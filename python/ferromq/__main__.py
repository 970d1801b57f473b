"""Makes `python -m ferromq` the command `ferromq`; what it does is in `cli`."""

import sys

from ferromq.cli.main import main

sys.exit(main())
