"""What the unit tests share."""

import sys
from pathlib import Path

from hypothesis import settings

# What several files need and is no test, as `client_script`.
sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes is the machine's business, not a promise.
settings.register_profile("ferromq", deadline=None)
settings.load_profile("ferromq")
