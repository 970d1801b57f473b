"""Fixtures of the unit tests."""

import sys
from pathlib import Path

# Modules that several test files import, such as `client_script`.
sys.path.insert(0, str(Path(__file__).parent))
