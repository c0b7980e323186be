"""Models of Flax, Equinox or plain functions, all as the same pair of functions on plain trees.

`functional` splits a library's object once. The structure is kept here; the arrays become nested dictionaries
under the names of the attributes, `hidden/kernel`, so that sharding rules and checkpoints need not know the
boxes or variables of any library. The object is rebuilt while a step is traced, which costs nothing at run
time.

Each library has one file (`_linen`, `_nnx`, `_equinox`, `_pair`), which implements `_library.Library` and is
imported only when such a model is given. Add a library as a new file, and tell it apart in `_functional`.
"""
