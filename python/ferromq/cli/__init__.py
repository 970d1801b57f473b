"""The command lines `ferromq`, `mqbroker` and `mqnamesrv`."""
