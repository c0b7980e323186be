"""The tools that know no JAX program: names of leaves, patterns, texts, files and stores.

_tree, _patterns           names of leaves of a tree, rules for them, and short texts about arrays
_arguments, …              calls of users' functions with the arguments that they name
_extras                    packages that are optional
_files                     safe reading of files, and atomic writing
_storage/                  one kind of path for directories on this machine and in a store
_checksums, _protobufs     checksums, and protocol buffers
_text, _numbers            texts that fit the terminal; numbers, times and meshes as text
"""
