"""Places where files lie: directories of this machine, and object stores."""

from meshwright.storage._kvstore import shared_context, telling, tensorstore_for, told
from meshwright.storage._object_bytes import AHEAD_BYTES, ObjectBytes
from meshwright.storage._object_file import Part, parts_of, put_parts, size_of, wrong_objects
from meshwright.storage._object_path import Directory, ObjectPath, location, read_each
from meshwright.storage._permission import telling_unreadable

__all__ = [
    "AHEAD_BYTES",
    "Directory",
    "ObjectBytes",
    "ObjectPath",
    "Part",
    "location",
    "parts_of",
    "put_parts",
    "read_each",
    "shared_context",
    "size_of",
    "telling",
    "telling_unreadable",
    "tensorstore_for",
    "told",
    "wrong_objects",
]
