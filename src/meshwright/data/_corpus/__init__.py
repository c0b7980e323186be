"""Documents in files, and their tokens.

`_files` finds files on this machine and in stores, `_streams` opens and decompresses them, and `_readers` and
`_archives` read one kind each; `_documents` chooses between them. `_indexed_source` sends the
documents of an object instead. `_store` has the tokens: `_work` writes them in another process, in the files
of `_blocks`. `_rows` makes rows of equal length of them.
To support another kind of files, write a reader and add it to `_documents` and to the endings in `_files`.
"""
