"""
The message classes and enums of `apache.rocketmq.v2`, made from `descriptors.bin`.

They live in a pool of their own: the default pool belongs to whoever imports RocketMQ's official client, which
registers the same names. So does `Timestamp` here differ from `google.protobuf.timestamp_pb2.Timestamp`; use
the one of this module. Types are in `messages.pyi`, written by proto/generate.py as the descriptors are.
"""

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR_POOL = DescriptorPool()


def _load() -> None:
    descriptors = FileDescriptorSet.FromString(Path(__file__).with_name("descriptors.bin").read_bytes())
    for file in descriptors.file:
        DESCRIPTOR_POOL.AddSerializedFile(file.SerializeToString())
    for file in descriptors.file:
        loaded = DESCRIPTOR_POOL.FindFileByName(file.name)
        for name, message in loaded.message_types_by_name.items():
            globals()[name] = GetMessageClass(message)
        for name, enum in loaded.enum_types_by_name.items():
            globals()[name] = EnumTypeWrapper(enum)
            globals().update({value.name: value.number for value in enum.values})


_load()
