"""What the unit tests share."""

import sys
from pathlib import Path

# What several files need and is no test, as `client_script`.
sys.path.insert(0, str(Path(__file__).parent))
