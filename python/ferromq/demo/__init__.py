"""The command `ferromq demo`: an example of the public API that checks what it does."""
