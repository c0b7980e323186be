"""`export`: a function and its weights as a file that JAX alone runs."""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from meshwright.base._internal import fsync_directory, import_extra, tree, write_whole
from meshwright.checkpoints._internal import (
    SAFETENSORS_DTYPES,
    TreeSource,
    local,
    staged,
    type_name,
    write_safetensors,
)
from meshwright.engine._exports._file import crc32_of, packed
from meshwright.errors import UsageError, listed
from meshwright.processes._internal import on_lead

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms that programs can be exported for."""
_LARGEST_INSIDE = 1_900_000_000  # a flatbuffer has at most 2 GiB


def export(
    function: Callable[[tree.PyTree, tree.PyTree], tree.PyTree],
    params: tree.PyTree,
    inputs: tree.PyTree,
    to: str | Path,
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    arrays: Literal["inside", "beside"] = "inside",
    constraints: Sequence[str] = (),
) -> Path:
    """Write a function and its weights as a program that runs without Meshwright, and return its path.

    `jax.export.deserialize(content).call(inputs)` runs it, and `mw.engine.load_program(path)` checks it
    first. See the how-to "Exporting a model". Collective: process 0 writes.

    Args:
      function: A pure function of the parameters and the inputs. It returns arrays, or dictionaries, lists
        and tuples of them.
      params: The parameters, a tree of arrays that this process holds whole.
      inputs: What the function takes beside them: a text such as `"int32[batch, length]"`, in which names
        stand for sizes that may be any number, or a tree of such texts, structs or arrays.
      to: The path of the file, which ends with `.jaxexport`.
      platforms: The platforms that the program is for, of `mw.engine.PLATFORMS`. They need not be here.
      arrays: "inside" writes the parameters into the program, up to 1.9 GB. "beside" writes them as
        safetensors with the same name, and the program takes them as its first argument, by their names
        there.
      constraints: What must hold of the sizes, such as `"length <= 1024"`.

    Raises:
      UsageError: A file exists already, an argument is invalid, or `flatbuffers` is not installed.

    Example:
      >>> params = {"w": jnp.ones((4, 2))}
      >>> product = lambda params, x: x @ params["w"]
      >>> path = mw.engine.export(product, params, "float32[batch, 4]", "sum.jaxexport")
      >>> program = jax.export.deserialize(bytearray(path.read_bytes()))
      >>> program.call(np.ones((3, 4), np.float32)).shape
      (3, 2)
    """
    _check(platforms, arrays)
    path, source = _place(to, ".jaxexport"), TreeSource(params)
    beside = path.with_suffix(".safetensors") if arrays == "beside" else None
    if beside is None and (nbytes := tree.nbytes(source.arrays())) > _LARGEST_INSIDE:
        raise UsageError(
            f"the parameters have {nbytes / 1e9:.1f} GB, and a program holds 1.9 GB: give arrays='beside'."
        )
    structs = structs_of(inputs, constraints)

    def write() -> str:
        names = [_in_file(name) for name in source.arrays()]
        _refuse_existing(path, *([beside] if beside else []))
        values = [source.read(name, ()) for name in source.arrays()]
        called = partial(_called, function, jax.tree.structure(params))
        exported = _exported(called, names, values, structs, platforms, inside=beside is None)
        about: dict[str, Any] = {
            "platforms": list(exported.platforms),
            "inputs": texts_of(structs),
            "outputs": texts_of(jax.tree.unflatten(exported.out_tree, exported.out_avals)),
            "constraints": list(constraints),
            "arrays": None,
            "jax": jax.__version__,
        }
        program = _serialized(exported)
        with staged(path) as unfinished:
            if beside is not None:
                about["arrays"] = _write_weights(source, unfinished / beside.name)
            write_whole(unfinished / path.name, packed(program, about))
            for target in [*([beside] if beside else []), path]:
                (unfinished / target.name).rename(target)
            fsync_directory(path.parent)
        return str(path)

    return Path(on_lead(write))


def export_params(params: tree.PyTree, to: str | Path) -> Path:
    """Write parameters as one safetensors file, and return its path. Collective: process 0 writes.

    Example:
      >>> path = mw.engine._internal.export_params({"layer": {"w": jnp.ones(3)}}, "model.safetensors")
      >>> list(mw.checkpoints.open_source(path).arrays())
      ['layer.w']
    """
    path, source = _place(to, ".safetensors"), TreeSource(params)

    def write() -> str:
        _refuse_existing(path)
        with staged(path) as unfinished:
            _write_weights(source, unfinished / path.name)
            (unfinished / path.name).rename(path)
            fsync_directory(path.parent)
        return str(path)

    return Path(on_lead(write))


def _check(platforms: Sequence[str], arrays: str) -> None:
    if isinstance(platforms, str) or not platforms or (unknown := [*{*platforms} - {*PLATFORMS}]):
        refused = platforms if isinstance(platforms, str) or not platforms else ", ".join(sorted(unknown))
        raise UsageError(f"platforms: {refused!r} is not among {', '.join(PLATFORMS)}; give a list of these.")
    if arrays not in ("inside", "beside"):
        raise UsageError(f"arrays={arrays!r}: expected 'inside' or 'beside'.")
    import_extra("flatbuffers", extra="export", needed_by="a file of a program")


def _place(to: str | Path, suffix: str) -> Path:
    path = local(to)
    if path.suffix != suffix:
        raise UsageError(f"{to}: the name of the file must end with {suffix}.")
    return path


def _refuse_existing(*paths: Path) -> None:
    if existing := [str(path) for path in paths if path.exists()]:
        raise UsageError(f"{listed(existing)} exists already; give another name, or move it away.")
    paths[0].parent.mkdir(parents=True, exist_ok=True)


def _in_file(name: str) -> str:
    return name.replace("/", ".")


def _called(function: Callable[..., Any], structure: Any, leaves: Sequence[Any], inputs: tree.PyTree) -> Any:
    return function(jax.tree.unflatten(structure, leaves), inputs)


def _exported(
    called: Callable[[Sequence[Any], tree.PyTree], Any],
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    structs: tree.PyTree,
    platforms: Sequence[str],
    *,
    inside: bool,
) -> jax_export.Exported:
    """Return the exported program of the inputs alone, or of the weights by name and the inputs."""
    with_constants = lambda inputs: called([jnp.asarray(x) for x in arrays], inputs)  # noqa: E731
    with_weights = lambda weights, inputs: called([weights[name] for name in names], inputs)  # noqa: E731
    of_weights = {name: tree.abstract(x) for name, x in zip(names, arrays, strict=True)}
    function, arguments = (with_constants, (structs,)) if inside else (with_weights, (of_weights, structs))
    try:
        return jax_export.export(jax.jit(function), platforms=platforms)(*arguments)
    except Exception as error:
        error.add_note(
            f"This was raised while the function was exported for {', '.join(platforms)}, for inputs "
            f"{json.dumps(texts_of(structs))}.\n  If it needs to know a size, give a number in place of its "
            "name, or say in `constraints` what holds of it."
        )
        raise


def _serialized(exported: jax_export.Exported) -> bytes:
    try:
        return bytes(exported.serialize())
    except ValueError as error:
        raise UsageError(
            f"the program cannot be written: {error}\n"
            "  Inputs and outputs must be arrays, or dictionaries, lists and tuples of them."
        ) from None


def _write_weights(source: TreeSource, path: Path) -> dict[str, Any]:
    """Write the arrays of a tree to a file, and return what the description says of it."""
    arrays = source.arrays()
    names = {_in_file(name): name for name in arrays}
    unfit = [f"{n} of {type_name(x)}" for n, x in arrays.items() if x.dtype.name not in SAFETENSORS_DTYPES]
    if unfit or len(names) < len(arrays):
        raise UsageError(
            f"these weights cannot be written as safetensors: {listed(unfit or arrays)}. The format lacks "
            "their dtype, or two would have one name.\n  Write them into the program: arrays='inside'."
        )
    structs = {new: arrays[name] for new, name in names.items()}
    write_safetensors(path, structs, lambda new: iter([source.read(names[new], ())]), {"format": "pt"})
    return {"file": path.name, "bytes": path.stat().st_size, "crc32": crc32_of(path)}


_TEXT = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\[\]]*)\]\s*")


def structs_of(inputs: tree.PyTree, constraints: Sequence[str]) -> tree.PyTree:
    """Return the structs of a program's inputs; a size with a name stands for any number."""
    try:
        scope = jax_export.SymbolicScope(constraints)
    except ValueError as error:
        raise UsageError(f"constraints={list(constraints)}: {error}") from None
    return tree.map_named(lambda name, text: _struct(name, text, scope), inputs)


def _struct(name: str, text: Any, scope: Any) -> jax.ShapeDtypeStruct:
    if not isinstance(text, str):
        return tree.abstract(text)
    match = _TEXT.fullmatch(text)
    try:
        if match is None:
            raise ValueError("there are no brackets")
        sizes = match["shape"].strip()
        shape = jax_export.symbolic_shape(sizes, scope=scope) if sizes else ()
        return jax.ShapeDtypeStruct(shape, jnp.dtype(match["dtype"]))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the input{f' {name}' if name else ''} is {text!r}, which is not a dtype and sizes, such as "
            f"'float32[batch, 28, 28]': {error}"
        ) from None


def texts_of(structs: tree.PyTree) -> Any:
    """Return the text of a struct, or a dictionary with the text of each by name."""
    texts = {
        name: f"{jnp.dtype(x.dtype).name}[{', '.join(map(str, x.shape))}]"
        for name, x in tree.named_leaves(structs).items()
    }
    return texts[""] if texts.keys() == {""} else texts
