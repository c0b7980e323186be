"""Protocol buffers made at run time, from the lines of `.proto` files that are needed here.

No code is generated, and none is imported from other packages: registering a message twice is an error, and
tensorboardX, which contains TensorBoard's messages, loads PyTorch where it is installed.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def messages(package: str, declared: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the classes of messages by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in declared.items():
        message = file.message_type.add(name=name)
        if any(field.startswith("oneof ") for field in fields):
            message.oneof_decl.add(name="oneof")
        for field in fields:
            message.field.append(_field(descriptor_pb2.FieldDescriptorProto, field, package))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"{package}.{name}")) for name in declared}


def _field(field: Any, declared: str, package: str) -> Any:
    *labels, kind, name, _, number = declared.split()
    descriptor = field(name=name, number=int(number), label=field.LABEL_OPTIONAL)
    if "repeated" in labels:
        descriptor.label = field.LABEL_REPEATED
    if "oneof" in labels:
        descriptor.oneof_index = 0
    if kind[0].isupper():
        descriptor.type, descriptor.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        descriptor.type = getattr(field, f"TYPE_{kind.upper()}")
    return descriptor
