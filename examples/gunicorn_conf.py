"""The configuration of gunicorn for `gunicorn_app.py`: load the program once, and make the clients of each worker."""

from typing import Any

bind = "127.0.0.1:8000"
workers = 2
worker_class = "gthread"
threads = 4
preload_app = True
graceful_timeout = 20  # seconds for requests under way, before the producer closes


def post_fork(_server: Any, worker: Any) -> None:
    """Make the clients of a worker."""
    worker.app.wsgi().begin()


def worker_exit(_server: Any, worker: Any) -> None:
    """Close them."""
    worker.app.wsgi().end()
