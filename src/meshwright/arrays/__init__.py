"""Named arrays that can be read in parts, and restoring them into a state on any mesh.

A `LazyArray` has a shape and a dtype, and reads its values on demand; a `Source` is a set of named ones.
`_match` pairs the leaves of a state with the arrays of a source, `_restore` reads them onto devices, `_cast`
and `_transforms` derive one source from another. May import ground rooms, `program` and `hlo`; knows no file
format. Add here what holds for arrays in any checkpoint; a file format goes to `formats`.
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
from meshwright.arrays._keys import keys_as_data, saved_structs, type_name
from meshwright.arrays._lazy import Index, LazyArray, concatenate, in_memory, stack
from meshwright.arrays._match import Assign, origins
from meshwright.arrays._naming import left_out, named_back, renamed
from meshwright.arrays._restore import compare_source, load, load_lazily, read_for, restore, restore_lazily
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
    "compare_source",
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
    "saved_structs",
    "shares_of",
    "slabs",
    "source_of",
    "spelling_of",
    "stack",
    "subtree",
    "type_name",
]
