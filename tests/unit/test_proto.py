"""The protocol's messages: equal to those of RocketMQ's client, usable beside it, and freshly generated."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from ferromq._proto import messages as pb

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "apache.rocketmq.v2"


def enum_facts(enum: EnumDescriptor) -> Iterator[tuple[Any, ...]]:
    """Yield the numbers of an enum's values."""
    for value in enum.values:
        yield enum.full_name, value.name, value.number


def field_facts(field: FieldDescriptor) -> tuple[Any, ...]:
    """Return the properties of a field that matter on the wire."""
    kind = field.message_type or field.enum_type
    oneof = field.containing_oneof.name if field.containing_oneof else None
    presence = None if field.is_repeated else field.has_presence
    return field.full_name, field.number, field.type, field.is_repeated, kind and kind.full_name, oneof, presence


def message_facts(message: Descriptor) -> Iterator[tuple[Any, ...]]:
    """Yield the facts of a message and of what is nested in it."""
    yield (message.full_name,)
    yield from map(field_facts, message.fields)
    for enum in message.enum_types:
        yield from enum_facts(enum)
    for nested in message.nested_types:
        yield from message_facts(nested)


def facts(file: FileDescriptor) -> set[tuple[Any, ...]]:
    """Return all facts of a file of the package."""
    found: set[tuple[Any, ...]] = set()
    for message in file.message_types_by_name.values():
        found.update(message_facts(message))
    for enum in file.enum_types_by_name.values():
        found.update(enum_facts(enum))
    for service in file.services_by_name.values():
        for method in service.methods:
            types = method.input_type.full_name, method.output_type.full_name
            found.add((method.full_name, *types, method.client_streaming, method.server_streaming))
    return found


def test_everything_the_official_client_ships_is_equal_here() -> None:
    """Names, numbers, types, labels, enum values and calls; ours may be newer and know more."""
    official_definition = pytest.importorskip("rocketmq.grpc_protocol.definition_pb2")
    official_service = pytest.importorskip("rocketmq.grpc_protocol.service_pb2")
    official = facts(official_definition.DESCRIPTOR) | facts(official_service.DESCRIPTOR)
    ours: set[tuple[Any, ...]] = set()
    for name in ("definition", "service"):
        ours |= facts(pb.DESCRIPTOR_POOL.FindFileByName(f"apache/rocketmq/v2/{name}.proto"))
    assert len(official) > 300
    assert not official - ours


@pytest.mark.parametrize("order", [("ferromq._proto.messages", "rocketmq"), ("rocketmq", "ferromq._proto.messages")])
def test_both_clients_live_in_one_process(order: tuple[str, str]) -> None:
    """Whichever is imported first, both can be used, and the default pool is the official client's."""
    code = f"""
import {order[0]}
import {order[1]}
from ferromq._proto import messages as pb
from rocketmq.grpc_protocol import Resource
from google.protobuf.descriptor_pool import Default
mine, theirs = pb.Resource(name="orders"), Resource(name="orders")
assert mine.SerializeToString() == theirs.SerializeToString()
assert Default().FindMessageTypeByName("{PACKAGE}.Resource") is theirs.DESCRIPTOR
assert mine.DESCRIPTOR is not theirs.DESCRIPTOR
"""
    pytest.importorskip("rocketmq")
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_generated_files_are_fresh() -> None:
    """`make proto` would leave no difference."""
    pytest.importorskip("grpc_tools")
    subprocess.run([sys.executable, str(ROOT / "proto" / "generate.py"), "--check"], check=True, timeout=60)


def test_the_types_name_every_field() -> None:
    """The stub of a message has its fields."""
    stub = (ROOT / "python" / "ferromq" / "_proto" / "messages.pyi").read_text()
    for name in ("SystemProperties", "ReceiveMessageRequest", "TelemetryCommand"):
        for field in getattr(pb, name).DESCRIPTOR.fields:
            assert f"    {field.name}: " in stub
