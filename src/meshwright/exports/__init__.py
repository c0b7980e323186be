"""Programs in one file, by `jax.export`, which run without Meshwright on other machines and devices.

`export` writes a function with its weights, and `load_program` reads it with its checks. May import `formats`
and the rooms below it. The bytes of the file are described in `_file`.
"""

from meshwright.exports._export import PLATFORMS, export, export_params
from meshwright.exports._load import Exported, load_program

__all__ = ["PLATFORMS", "Exported", "export", "export_params", "load_program"]
