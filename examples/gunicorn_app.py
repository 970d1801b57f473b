"""
An HTTP service under gunicorn that sends a message for each request; `gunicorn_conf.py` is its configuration.

Needs `pip install gunicorn` and a broker. In two terminals:

    ferromq dev
    cd examples && FERROMQ_ENDPOINT=127.0.0.1:8081 gunicorn --config gunicorn_conf.py gunicorn_app:app

Then `curl --data tea http://127.0.0.1:8000`.
"""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import ferromq


class Service:
    """Announces orders. It is loaded once, before gunicorn forks; each worker then has its own producer."""

    def __init__(self) -> None:
        self._mq = ferromq.connect()  # connects nothing yet, and makes clients in every worker

    def begin(self) -> None:
        """Make the producer of this worker; called after the fork."""
        self._producer = self._mq.producer(timeout=5)

    def end(self) -> None:
        """Close it; called when the worker ends."""
        self._mq.close()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        """Send the body of a request, and answer the id of the message. Threads of a worker share the producer."""
        try:
            receipt = self._producer.send("orders", environ["wsgi.input"].read())
        except ValueError as error:  # the body is empty, or too large
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [str(error).encode()]
        except ferromq.OutcomeUnknown as error:  # it may be stored: the client decides whether to try again
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [str(error).encode()]
        start_response("201 Created", [("Content-Type", "application/json")])
        return [json.dumps({"message_id": receipt.message_id, "worker": os.getpid()}).encode()]


app = Service()
