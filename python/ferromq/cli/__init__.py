"""The command line: `ferromq`, `mqbroker`, `mqnamesrv`."""
