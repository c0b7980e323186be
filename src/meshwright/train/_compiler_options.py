"""Options of the XLA compiler, given for one program."""

from collections.abc import Mapping

import jax

from meshwright.errors import UsageError

CompilerOptions = Mapping[str, bool | int | float | str]
"""XLA's options by name, without dashes: `{"xla_gpu_enable_triton_gemm": False}`."""

_REFUSED = ("No such compile option", "While setting option")


def compiled_with(lowered: jax.stages.Lowered, options: CompilerOptions) -> jax.stages.Compiled:
    """Return a lowered program, compiled with `options`.

    Args:
      lowered: The program.
      options: Options of the compiler. What they leave out is as in `XLA_FLAGS`.

    Raises:
      UsageError: The compiler of these devices does not know an option, or refuses its value.
    """
    try:
        return lowered.compile(compiler_options=dict(options) or None)  # type: ignore[arg-type]
    except jax.errors.JaxRuntimeError as error:
        why = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").rstrip(".")
        if not why.startswith(_REFUSED):
            raise
        raise UsageError(
            f"compiler options: {why}.\n  The compiler is that of jax {jax.__version__}. Each version and "
            "each kind of device has options of its own. Set those of one kind of device by a mesh rule: "
            'mesh_rules=(("NVIDIA H100.*", mw.override({"compile.options": {"xla_gpu_…": True}})),).'
        ) from None
