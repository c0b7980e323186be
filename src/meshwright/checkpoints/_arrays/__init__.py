"""Named arrays that can be read in parts, and restoring them into a state on any mesh.

A `LazyArray` has a shape and a dtype, and reads its values on demand; a `Source` is a set of named ones.
`_match` pairs the leaves of a state with the arrays of a source, `_restore` reads them onto devices, `_cast`
has the form in which they are saved. Code for arrays of any
checkpoint belongs here; a file format goes to `checkpoints/_formats`.
"""
