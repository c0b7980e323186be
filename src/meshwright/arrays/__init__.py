"""Named arrays that are read in parts: sources of them, matched with a state and restored onto any mesh.

`LazyArray` stands for an array that nothing was read of, a `Source` for named ones. `_match` finds what a
state wants in a source, `_restore` puts it on devices, `_cast` and `_transforms` make sources of other
sources. May import ground rooms, `program` and `hlo`; knows no file format. Add here what is true of
arrays in any checkpoint; a format goes to `formats`.
"""

from meshwright.arrays._cast import Casts, cast_dtypes, cast_leaf, cast_leaves, converted, floating
from meshwright.arrays._chunks import (
    Bounds,
    as_rows,
    bounds_of,
    chunks_of,
    cuts,
    grid,
    overlapping,
    row_major,
    shares_of,
    slabs,
)
from meshwright.arrays._diff import Difference, diff
from meshwright.arrays._exported import (
    Chosen,
    Names,
    TreeSource,
    chosen,
    is_of_numpy,
    local,
    readable,
    refuse_dtypes,
    source_of,
)
from meshwright.arrays._keys import keys_as_data, type_name
from meshwright.arrays._lazy import Index, LazyArray, concatenate, in_memory, stack
from meshwright.arrays._match import Assign, origins
from meshwright.arrays._naming import left_out, named_back, renamed
from meshwright.arrays._restore import load, load_lazily, read_for, restore, restore_lazily
from meshwright.arrays._source import Opened, Source, Spelling, described, spelling_of
from meshwright.arrays._transforms import Arrays, as_source, cast, cast_back, empty_of, subtree

__all__ = [
    "Arrays",
    "Assign",
    "Bounds",
    "Casts",
    "Chosen",
    "Difference",
    "Index",
    "LazyArray",
    "Names",
    "Opened",
    "Source",
    "Spelling",
    "TreeSource",
    "as_rows",
    "as_source",
    "bounds_of",
    "cast",
    "cast_back",
    "cast_dtypes",
    "cast_leaf",
    "cast_leaves",
    "chosen",
    "chunks_of",
    "concatenate",
    "converted",
    "cuts",
    "described",
    "diff",
    "empty_of",
    "floating",
    "grid",
    "in_memory",
    "is_of_numpy",
    "keys_as_data",
    "left_out",
    "load",
    "load_lazily",
    "local",
    "named_back",
    "origins",
    "overlapping",
    "read_for",
    "readable",
    "refuse_dtypes",
    "renamed",
    "restore",
    "restore_lazily",
    "row_major",
    "shares_of",
    "slabs",
    "source_of",
    "spelling_of",
    "stack",
    "subtree",
    "type_name",
]
