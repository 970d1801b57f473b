"""gRPC clients, encrypted and plain, on one port."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ferromq._proto import messages as pb
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig

FILES = Path(__file__).parents[1] / "fixtures" / "tls"
PATIENCE = 60
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"


@contextlib.contextmanager
def _broker(tmp_path: Path, lines: str = "") -> Iterator[BrokerController]:
    file = tmp_path / "broker.conf"
    file.write_text(f"storePathRootDir={tmp_path / 'store'}\nmappedFileSizeCommitLog=16777216\n{lines}")
    free = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0"}
    broker = BrokerController(BrokerConfig.load(file, environment={}, flags=free))
    try:
        yield broker
    finally:
        broker.close()


def _send(channel: grpc.Channel, body: str) -> int:
    """Send a message of 4 MiB and return the answer's code."""
    with channel:
        call = channel.unary_unary(SEND, pb.SendMessageRequest.SerializeToString, pb.SendMessageResponse.FromString)
        message = pb.Message(topic=pb.Resource(name="flights"), body=body.encode().ljust(4 << 20))
        message.system_properties.message_id = body
        answer = call(
            pb.SendMessageRequest(messages=[message]),
            timeout=PATIENCE,
            metadata=[("x-mq-client-id", "test")],
        )
        return answer.status.code


def _encrypted(broker: BrokerController, root: bytes) -> grpc.Channel:
    port = broker.endpoint.rpartition(":")[2]
    return grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(root))


def test_encrypted_and_plain_clients_send_to_the_same_port(tmp_path: Path) -> None:
    """With a certificate of one's own, by the keys of RocketMQ's proxy."""
    lines = f"tlsCertPath={FILES / 'first.pem'}\ntlsKeyPath={FILES / 'first.key'}\n"
    with _broker(tmp_path, lines) as broker:
        assert _send(_encrypted(broker, (FILES / "ca.pem").read_bytes()), "encrypted") == pb.Code.OK
        assert _send(grpc.insecure_channel(broker.endpoint), "plain") == pb.Code.OK


def test_a_broker_that_was_given_no_certificate_shows_one_of_its_own(tmp_path: Path) -> None:
    """A client that stored it can trust it; one with an authority cannot."""
    with _broker(tmp_path) as broker:
        host, _, port = broker.endpoint.rpartition(":")
        shown = ssl.get_server_certificate((host, int(port))).encode()
        assert _send(_encrypted(broker, shown), "trusted") == pb.Code.OK
        with pytest.raises(grpc.RpcError) as refused:
            _send(_encrypted(broker, (FILES / "ca.pem").read_bytes()), "not trusted")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
