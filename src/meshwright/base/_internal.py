"""The names of `base` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.base import _description as description
    from meshwright.base import _protobufs as protobufs
    from meshwright.base import _tree as tree
    from meshwright.base._arguments import by_name, declares, in_order, num_required, spelled
    from meshwright.base._checksums import crc32, joined, masked_crc32c
    from meshwright.base._collector import collector_paused
    from meshwright.base._description import Difference
    from meshwright.base._docstrings import documented
    from meshwright.base._extras import import_extra, not_installed
    from meshwright.base._files import (
        advice,
        allow_files_of,
        check_depth,
        check_unicode,
        fsync_directory,
        make_directory,
        open_file,
        open_ordinary,
        parse_json,
        parse_object,
        read_file,
        write_one_of_many,
        write_whole,
    )
    from meshwright.base._numbers import (
        FORMAT,
        duration,
        human_bytes,
        local_time,
        mesh_text,
        mesh_words,
        milliseconds,
        number,
        seconds_text,
        sparkline,
        utc_time,
    )
    from meshwright.base._patterns import OptionalPattern, Table, compiled, judge, optional, value_of
    from meshwright.base._protobufs import messages
    from meshwright.base._storage._copies import local_copy, mirrored, put_at, put_file_at, read_text
    from meshwright.base._storage._local_paths import (
        check_owned,
        is_address,
        is_file_name,
        join,
        local_path,
        user_cache,
    )
    from meshwright.base._storage._object_file import (
        AHEAD_BYTES,
        ObjectBytes,
        Part,
        parts_of,
        put_parts,
        wrong_objects,
    )
    from meshwright.base._storage._path import Directory, ObjectPath, check_address, location, read_each
    from meshwright.base._text import aligned, print_line, screen_width, shortened, wrapped
    from meshwright.base._tree import (
        PyTree,
        abstract,
        differences,
        empty_nodes,
        keys_of,
        leaf_names,
        map_named,
        mesh_of,
        name_of,
        named_leaves,
        nbytes,
        nested,
        size_text,
        values_of,
    )
    from meshwright.base._unknown_arguments import explained, explained_as, instead, synonym
else:
    __getattr__, __dir__ = lazy_names(__name__)
