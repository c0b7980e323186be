"""Protocol buffers by what their `.proto` files say of them, as far as it is needed here.

No code is generated and no other package's is imported: what is registered twice under one name is an error,
and tensorboardX, which has TensorBoard's, loads PyTorch where that is installed.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def messages(package: str, declared: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the classes of messages by name.

    Args:
      package: a name for all of them, of no meaning in the bytes.
      declared: the fields of each message, in the words of `.proto` files of the third version:
        `{"Point": ["double x = 1", "repeated Point near = 2"]}`. Fields that begin with `oneof` are of one
        oneof, and tell whether they are there.
    """
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
    found = field(name=name, number=int(number), label=field.LABEL_OPTIONAL)
    if "repeated" in labels:
        found.label = field.LABEL_REPEATED
    if "oneof" in labels:
        found.oneof_index = 0
    if kind[0].isupper():
        found.type, found.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        found.type = getattr(field, f"TYPE_{kind.upper()}")
    return found
