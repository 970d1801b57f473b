"""A server of remoting whose answers a test writes: a name server, or a broker of another version."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from remoting_peer import Frame, decode

ROUTE, CLUSTERS = 105, 106
TOPIC_NOT_EXIST, NOT_SUPPORTED = 17, 3
_RESPONSE = 1
_PATIENCE = 10.0

Answer = Callable[[Frame], Frame]


class ScriptedServer:
    """Answers each request by the function of its code, from a thread for each connection; ends with its `with`."""

    def __init__(self, answers: Mapping[int, Answer], *, address: str = "127.0.0.1:0", version: int = 513) -> None:
        """*version* is RocketMQ's number. A request without a function gets code 3, as of RocketMQ's servers."""
        self.answers = dict(answers)
        self.asked: list[Frame] = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    while size := self.rfile.read(4):
                        frame = decode(self.rfile.read(int.from_bytes(size)))
                        server.asked.append(frame)
                        unknown = Frame(NOT_SUPPORTED, remark=f"[{frame.code}] request type not supported")
                        answer = server.answers[frame.code](frame) if frame.code in server.answers else unknown
                        sent = replace(answer, opaque=frame.opaque, flag=_RESPONSE, version=version)
                        self.wfile.write(sent.encode())

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        host, _, port = address.rpartition(":")
        self._server = Server((host, int(port)), Handler)
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_PATIENCE)


def names(brokers: Mapping[str, Mapping[int, str]], *, queues: int = 1, **options: Any) -> ScriptedServer:
    """Return a name server that knows the *brokers*, name → id → address, each with all topics."""

    def route(_frame: Frame) -> Frame:
        if not brokers:
            return Frame(TOPIC_NOT_EXIST, remark="No topic route info in name server for the topic")
        one = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicSysFlag": 0}
        content = {
            "brokerDatas": [_broker(name, addresses) for name, addresses in brokers.items()],
            "queueDatas": [{"brokerName": name, **one} for name in brokers],
        }
        return Frame(0, body=json.dumps(content).encode())

    def clusters(_frame: Frame) -> Frame:
        table = {name: _broker(name, addresses) for name, addresses in brokers.items()}
        content = {"brokerAddrTable": table, "clusterAddrTable": {"DefaultCluster": list(brokers)}}
        return Frame(0, body=json.dumps(content).encode())

    return ScriptedServer({ROUTE: route, CLUSTERS: clusters}, **options)


def _broker(name: str, addresses: Mapping[int, str]) -> dict[str, Any]:
    brokers = {str(number): address for number, address in addresses.items()}
    return {"brokerName": name, "cluster": "DefaultCluster", "brokerAddrs": brokers}
