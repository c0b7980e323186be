"""Files in local directories and in object stores, `s3://bucket/run` and others, used in the same way.

`location` returns an object for a local path or the URL of a store, with the methods of `Path` that
checkpoints need. Code that needs real files works in a local directory, which is uploaded at the
end (`put_at`, `put_file_at`) or in the background (`mirrored`); `local_copy` downloads. Given a local path,
all of these but `mirrored` use it directly. `local_path` refuses URLs, for files that must be local. Add a
kind of store to `_settings`.
"""
