"""`load`: an exported program, checked and ready to be called."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from meshwright.base._internal import documented, local_path, tree
from meshwright.checkpoints._internal import open_source
from meshwright.engine._exports._export import texts_of
from meshwright.engine._exports._file import crc32_of, read
from meshwright.errors import InputError, UsageError


@documented
@dataclass(frozen=True)
class Exported:
    """A program that `mw.engine.export` wrote. Call it with the inputs.

    Example:
      >>> times = lambda params, x: x * params
      >>> path = mw.engine.export(times, jnp.float32(3), "float32[n]", "three.jaxexport")
      >>> program = mw.engine.load_program(path)
      >>> program.inputs, program.platforms
      ('float32[n]', ('cpu', 'cuda', 'tpu'))
      >>> program(np.ones(2, np.float32))
      Array([3., 3.], dtype=float32)
    """

    path: Path
    """The file."""
    platforms: tuple[str, ...]
    """The platforms that the program is for."""
    inputs: Any
    """The dtype and sizes of the inputs, a text, or a dictionary of texts by name."""
    outputs: Any
    """The dtype and sizes of the outputs, in the same form."""
    constraints: tuple[str, ...]
    """Conditions on the sizes, such as `length <= 1024`."""
    program: jax_export.Exported = field(repr=False)
    """The program as JAX knows it."""
    arrays: dict[str, jax.Array] | None = field(repr=False)
    """The parameters by name, if they are beside the program."""

    def __call__(self, inputs: tree.PyTree) -> Any:
        """Return the outputs."""
        platform = jax.default_backend()
        platforms = self.platforms if platform != "gpu" else {*self.platforms} & {"cuda", "rocm"}
        if platform not in ("gpu", *platforms) or not platforms:
            raise UsageError(
                f"{self.path} is for {', '.join(self.platforms)}, and the devices here are of {platform}.\n"
                f"  Export it again with --platforms {','.join((*self.platforms, platform))}."
            )
        arguments = (inputs,) if self.arrays is None else (self.arrays, inputs)
        try:
            return self.program.call(*arguments)
        except (ValueError, TypeError) as error:
            text = json.dumps(texts_of(tree.abstract(inputs)))
            raise UsageError(
                f"{self.path} takes {json.dumps(self.inputs)}{self._where()}; found {text}.\n  {error}"
            ) from None

    def _where(self) -> str:
        return f", where {' and '.join(self.constraints)}" if self.constraints else ""


def load_program(path: str | Path) -> Exported:
    """Return a program that `mw.engine.export` wrote, with the weights beside it, having compared all
    checksums.

    A program can do what JAX can: load only files whose author you trust.

    Args:
      path: The file.

    Raises:
      InputError: There is no such file, it or its weights are damaged, or this version of JAX does not read
        it.

    Example:
      >>> path = mw.engine.export(lambda params, x: x + params, jnp.int32(1), "int32[]", "one.jaxexport")
      >>> int(mw.engine.load_program(path)(np.int32(41)))
      42
    """
    file = local_path(path)
    program, about = read(file)
    try:
        exported = jax_export.deserialize(bytearray(program))
    except Exception as error:  # jax and flatbuffers raise many kinds
        raise InputError(
            f"{file} was written by jax {about['jax']} and cannot be read by jax {jax.__version__}: "
            f"{error}\n  JAX reads programs of the six months before it: export it again."
        ) from None
    arrays = None if about["arrays"] is None else _beside(file, about["arrays"])
    platforms, constraints = tuple(about["platforms"]), tuple(about["constraints"])
    return Exported(file, platforms, about["inputs"], about["outputs"], constraints, exported, arrays)


def _beside(program: Path, about: dict[str, Any]) -> dict[str, jax.Array]:
    path = program.parent / about["file"]
    try:
        nbytes, crc = path.stat().st_size, crc32_of(path)
    except OSError as error:
        raise InputError(
            f"the weights of {program} are in {path}, which cannot be read: {error.strerror}.\n"
            "  Copy both files into one directory."
        ) from None
    if (nbytes, crc) != (about["bytes"], about["crc32"]):
        raise InputError(
            f"{path} is damaged, or is not of {program}: expected {about['bytes']} bytes with the checksum "
            f"{about['crc32']:08x}, found {nbytes} with {crc:08x}.\n  Copy both files again."
        )
    return {name: jax.numpy.asarray(np.asarray(x)) for name, x in open_source(str(path)).arrays().items()}
