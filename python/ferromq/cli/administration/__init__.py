"""
The commands of `ferromq` that administer running servers, on click.

The commands that run servers and read stores do not import this package.
"""
