"""The tools that know no JAX program: names of leaves, patterns, texts, files and stores.

_tree, _patterns           names of leaves of a tree, and rules for them
_arguments, …              calls of users' functions with the arguments that they name
_documents, _durable       safe reading of files, and atomic writing
_storage/                  one kind of path for directories on this machine and in a store
_crc32, _crc32c, _protobufs   checksums, and protocol buffers
_tables, _lines, _times, _shown   texts that fit the terminal
"""
