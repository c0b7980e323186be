"""The names of `base` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.base import _description as description
    from meshwright.base import _protobufs as protobufs
    from meshwright.base import _tree as tree
    from meshwright.base._arguments import by_name, declares, in_order, num_required, spelled
    from meshwright.base._collector import collector_paused
    from meshwright.base._crc32 import crc32, joined
    from meshwright.base._crc32c import masked_crc32c
    from meshwright.base._description import Difference
    from meshwright.base._docstrings import documented
    from meshwright.base._documents import (
        check_depth,
        check_unicode,
        open_file,
        parse_json,
        parse_object,
        read_file,
    )
    from meshwright.base._durable import (
        fsync_directory,
        make_directory,
        open_ordinary,
        write_one_of_many,
        write_whole,
    )
    from meshwright.base._lines import print_line
    from meshwright.base._open_files import advice, allow_files_of
    from meshwright.base._patterns import OptionalPattern, Table, compiled, judge, optional, value_of
    from meshwright.base._protobufs import messages
    from meshwright.base._shown import human_bytes, mesh_of, mesh_text, size_text, values_of
    from meshwright.base._storage._copies import local_copy, put_at, put_file_at, read_text
    from meshwright.base._storage._mirror import mirrored
    from meshwright.base._storage._object_file import (
        AHEAD_BYTES,
        ObjectBytes,
        Part,
        parts_of,
        put_parts,
        wrong_objects,
    )
    from meshwright.base._storage._of_user import check_owned, user_cache
    from meshwright.base._storage._path import Directory, ObjectPath, check_address, location, read_each
    from meshwright.base._storage._permission import telling_unreadable
    from meshwright.base._storage._place import is_address, is_file_name, join, local_path
    from meshwright.base._tables import aligned, screen_width, shortened, wrapped
    from meshwright.base._times import FORMAT, local_time, utc_time
    from meshwright.base._tree import (
        PyTree,
        abstract,
        differences,
        empty_nodes,
        keys_of,
        leaf_names,
        map_named,
        name_of,
        named_leaves,
        nbytes,
        nested,
    )
    from meshwright.base._unknown_arguments import explained, explained_as, instead, synonym
else:
    __getattr__, __dir__ = lazy_names(__name__)
