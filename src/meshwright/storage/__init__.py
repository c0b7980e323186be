"""Files in local directories and in object stores, `s3://bucket/run` and others, used in the same way.

A place is a local path or the URL of a store. `location` returns an object for either, with the methods of
`Path` that checkpoints need. Code that needs real files works in a local directory, which is uploaded at the
end (`put_at`, `put_file_at`) or in the background (`mirrored`); `local_copy` downloads. Given a local path,
all of these but `mirrored` use it directly. `local_path` refuses URLs, for files that must be local.
May import ground rooms only. Add a kind of store to `_settings`.
"""

from meshwright.storage._copies import local_copy, put_at, put_file_at, read_text
from meshwright.storage._mirror import mirrored
from meshwright.storage._object_file import AHEAD_BYTES, ObjectBytes, Part, parts_of, put_parts, wrong_objects
from meshwright.storage._of_user import check_owned, user_cache
from meshwright.storage._path import Directory, ObjectPath, check_address, location, read_each
from meshwright.storage._permission import telling_unreadable
from meshwright.storage._place import is_address, is_file_name, join, local_path

__all__ = [
    "AHEAD_BYTES",
    "Directory",
    "ObjectBytes",
    "ObjectPath",
    "Part",
    "check_address",
    "check_owned",
    "is_address",
    "is_file_name",
    "join",
    "local_copy",
    "local_path",
    "location",
    "mirrored",
    "parts_of",
    "put_at",
    "put_file_at",
    "put_parts",
    "read_each",
    "read_text",
    "telling_unreadable",
    "user_cache",
    "wrong_objects",
]
