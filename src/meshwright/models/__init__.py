"""Reference models: one file each, plain functions on a plain tree, to read, to use and to copy."""

from meshwright.models import decoder

__all__ = ["decoder"]
