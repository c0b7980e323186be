"""Places where files lie: directories of this machine, and stores, `s3://bucket/run` and others.

`location` returns what is used alike for both, and is how checkpoints are written and read. Programs that
need files work in a directory of this machine, and what is in it is put at the address: when they are done
(`put_at`, `put_file_at`), or behind them while they go on (`mirrored`). `local_copy` is the way back.
Where a place on this machine is named, all but `mirrored`, which is for addresses, give just that. What
can be on this machine only is asked for by `local_path`, which refuses addresses. May import ground rooms
only. Add a kind of store to `_settings`.
"""

from meshwright.storage._copies import local_copy, put_at, put_file_at, read_text
from meshwright.storage._mirror import mirrored
from meshwright.storage._object_file import AHEAD_BYTES, ObjectBytes, Part, parts_of, put_parts, wrong_objects
from meshwright.storage._path import Directory, ObjectPath, location, read_each
from meshwright.storage._permission import telling_unreadable
from meshwright.storage._place import is_address, is_file_name, join, local_path

__all__ = [
    "AHEAD_BYTES",
    "Directory",
    "ObjectBytes",
    "ObjectPath",
    "Part",
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
    "wrong_objects",
]
