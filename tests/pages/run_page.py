"""Runs the blocks of one page in the working directory: `run_page.py PAGE`."""

import sys
from pathlib import Path

from page_blocks import Page

Page(Path(sys.argv[1]), Path.cwd()).run()
