"""Runs, profiles and pictures at addresses: `s3://bucket/run`, and wherever else fsspec has a package for.

Programs work in a directory of this machine, and what is in it is put at the address: when they are done
(`put_at`, `put_file_at`), or behind them while they go on (`mirrored`). `local_copy` is the way back. Where
a place on this machine is named, all but `mirrored`, which is for addresses, give just that. What can be on
this machine only is asked for by `local_path`, which refuses addresses. (Checkpoints have their own way into
object stores, as nothing of them is written to a disk.)
"""

from meshwright.addresses._address import connect, is_address, is_file_name, join, local_path, read_text
from meshwright.addresses._copies import local_copy, put_at, put_file_at
from meshwright.addresses._mirror import mirrored

__all__ = [
    "connect",
    "is_address",
    "is_file_name",
    "join",
    "local_copy",
    "local_path",
    "mirrored",
    "put_at",
    "put_file_at",
    "read_text",
]
