"""
Answers what access control costs a single send: the same sends to a broker without it and to one with it.

    python benches/access.py [--rounds 100] [--sends 200]

Each broker is a process of its own; they take turns. Printed are the time without access control and the medians of the
rounds' ratios, with their quartiles. `checks` compares signed requests at both brokers: it is what the broker's checks
cost. `all` compares signed requests with unsigned ones: it has the client's signature, too.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import grpc

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.core.credentials import AUTHORIZATION, DATE_TIME, Credentials
from ferromq.protocol.codes import RequestCode

BROKER = """
import sys, ferromq
options = {"authentication_enabled": True, "authorization_enabled": True, "initial_user": sys.argv[1]}
with ferromq.embedded(**options if sys.argv[1] else {}) as mq:
    print(mq.endpoint, mq.remoting, mq.namesrv, flush=True)
    sys.stdin.read()
"""
ADMIN, USER = ("root", "a long secret"), ("ada", "ada's secret")
BODY = b"x" * 1_024
# Those of Java's producer: SEND_MESSAGE_V2 has short names.
FIELDS = dict(
    zip("abcdefghjkm", ("producers", "orders", "TBW102", *"400", "1700000000000", *"00", *("false",) * 2), strict=True)
)
FIELDS["i"] = "UNIQ_KEY\x017F00000100002A9F0000000000000000\x02WAIT\x01true\x02"
Keys = tuple[str, str]
Broker = tuple[str, str]
"""Its endpoint, and its address for remoting."""
Send = Callable[[], object]


@contextmanager
def broker(initial_user: str) -> Iterator[tuple[str, str, str]]:
    """Run a broker in a process of its own; with access control if it has a first user."""
    command = [sys.executable, "-c", BROKER, initial_user]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint, remoting, namesrv = process.stdout.readline().split()
            yield endpoint, remoting, namesrv
        finally:
            process.terminate()


@contextmanager
def sides() -> Iterator[tuple[Broker, Broker]]:
    """Run a broker without access control, and one with a user who may send."""
    with (
        broker("") as opened,
        broker(":".join(ADMIN)) as closed,
        ferromq.Admin(opened[2]) as admin,
        ferromq.Admin(closed[2], access_key=ADMIN[0], secret_key=ADMIN[1]) as closed_admin,
    ):
        admin.create_topic("orders")
        closed_admin.create_topic("orders")
        closed_admin.create_user(*USER)
        closed_admin.create_acl(USER[0], "Topic:orders", "Pub")
        yield opened[:2], closed[:2]


def remoting(stack: ExitStack, server: Broker, keys: Keys | None) -> Send:
    """Return a send over remoting."""
    client = stack.enter_context(closing(RemotingClient(credentials=keys)))
    return lambda: client.call(server[1], RequestCode.SEND_MESSAGE_V2, FIELDS, BODY)


def calls(stack: ExitStack, server: Broker, keys: Keys | None) -> Send:
    """Return a send over gRPC, whose date is signed for each call, as official clients do."""
    channel = stack.enter_context(grpc.insecure_channel(server[0]))
    sent = pb.Message(topic=pb.Resource(name="orders"), body=BODY)
    sent.system_properties.message_id = "7F00000100002A9F0000000000000000"
    request = pb.SendMessageRequest(messages=[sent]).SerializeToString()
    method = channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
    known = (("x-mq-client-id", "bench"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.1.0"))
    if keys is None:
        return lambda: method(request, metadata=known)
    credentials, date = Credentials(*keys), time.strftime("%Y%m%dT%H%M%SZ")
    return lambda: method(
        request, metadata=(*known, (DATE_TIME, date), (AUTHORIZATION, credentials.authorization(date)))
    )


def producer(stack: ExitStack, server: Broker, keys: Keys | None) -> Send:
    """Return a send of our producer, which uses framed calls."""
    access_key, secret_key = keys or (None, None)
    client = stack.enter_context(ferromq.connect(server[0], access_key=access_key, secret_key=secret_key))
    sender = client.producer()
    return lambda: sender.send("orders", BODY)


def taken(send: Send, count: int) -> float:
    """Return how many µs a send took, of so many."""
    begin = time.perf_counter()
    for _ in range(count):
        send()
    return (time.perf_counter() - begin) / count * 1e6


def main() -> None:
    """Print a line for each way to send."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each (default: 100)")
    parser.add_argument("--sends", type=int, default=200, help="sends of a round (default: 200)")
    given = parser.parse_args()
    with sides() as (opened, closed), ExitStack() as stack:
        for name, way in (("remoting", remoting), ("gRPC", calls), ("producer", producer)):
            sends = [way(stack, opened, None), way(stack, opened, USER), way(stack, closed, USER)]
            for send in sends:
                taken(send, given.sends)
            # Each round begins with another side: what comes first is often slower.
            rounds = []
            for number in range(given.rounds):
                order = [(number + place) % 3 for place in range(3)]
                times = {side: taken(sends[side], given.sends) for side in order}
                rounds.append([times[side] for side in range(3)])
            print(f"{name:9}{statistics.median(plain for plain, _, _ in rounds):7.1f} µs", end="")
            for what, base in (("checks", 1), ("all", 0)):
                low, middle, high = statistics.quantiles(each[2] / each[base] for each in rounds)
                print(f"  {what} {middle:.3f} times ({low:.3f} to {high:.3f})", end="")
            print()


if __name__ == "__main__":
    main()
