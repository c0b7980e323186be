"""The texts under hlo/, which are real compilers': make.py there made them."""

import lzma
import re
from pathlib import Path

import meshwright as mw


def stored(platform, shape):
    """The program of a platform for a mesh, and the mesh, on virtual devices."""
    name = re.sub(r"\W", "_", shape)
    file = Path(__file__).parent / f"hlo/{platform}_{name}.hlo.txt.xz"
    return lzma.decompress(file.read_bytes()).decode(), mw.make_mesh(shape)
