"""Documents in files, and their tokens.

`_files` finds files on this machine and in stores, `_streams` opens and decompresses them, and `_lines`,
`_columns` and `_archives` read one kind each; `_documents` chooses between them. `_given` sends
the documents of an object instead.
`_store` has the tokens: `_work` writes them in another process, as `_blocks` says. `_row_store` makes rows of
equal length of them, which `_packing` fills. May import ground rooms
only, and neither JAX nor anything that imports it, because a process that only reads must start at once. To
support another kind of files, write a reader and add it to `_documents` and to the endings in `_files`.
"""

from meshwright.corpus._blocks import Block
from meshwright.corpus._documents import Document, documents, each_document
from meshwright.corpus._files import File, files_of
from meshwright.corpus._given import Documents
from meshwright.corpus._row_store import RowStore
from meshwright.corpus._store import Store, tokenized

__all__ = [
    "Block",
    "Document",
    "Documents",
    "File",
    "RowStore",
    "Store",
    "documents",
    "each_document",
    "files_of",
    "tokenized",
]
