"""Named arrays that are read in parts: sources of them, matched with a state and restored onto any mesh."""

from meshwright.arrays._cast import Casts, cast_dtypes, cast_leaf, cast_leaves, converted, floating
from meshwright.arrays._chunks import Bounds, as_rows, bounds_of, chunks_of, grid, overlapping, row_major
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
from meshwright.arrays._load import load, load_lazily
from meshwright.arrays._match import Assign, origins
from meshwright.arrays._naming import left_out, named_back, renamed
from meshwright.arrays._restore import read_for, restore, restore_lazily
from meshwright.arrays._slabs import slabs
from meshwright.arrays._source import Opened, Source, described
from meshwright.arrays._spelling import Spelling, spelling_of
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
    "slabs",
    "source_of",
    "spelling_of",
    "stack",
    "subtree",
    "type_name",
]
