"""Checkpoints of all known formats: opening, verifying, listing, pinning and exporting them.

`readers` has one file for each format that can be read, and each `_export_….py` writes one format. To read
another format, add a file with a `Reader` to `readers` and name it in `READERS`. To write one, add an
`_export_….py` that takes a source and a directory.
"""
