"""Fixtures of the unit tests."""

import sys
from pathlib import Path

from hypothesis import settings

# Modules that several test files import, such as `client_script`.
sys.path.insert(0, str(Path(__file__).parent))

# The duration of an example depends on the machine; it is no promise.
settings.register_profile("ferromq", deadline=None)
settings.load_profile("ferromq")
