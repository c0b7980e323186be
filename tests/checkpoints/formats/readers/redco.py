"""redco's checkpoints, as redco writes them: trees by Orbax, and information in JSON."""

import json
import pickle
import warnings


class Trap:
    """What must not be unpickled."""

    def __reduce__(self):
        return (eval, ("1 / 0",))


def write(workdir, name, params, opt_state, **info):
    """Write a checkpoint by name, and remember it as the last."""
    directory = workdir / "ckpts" / name
    write_tree(directory / "params", params)
    if opt_state is not None:
        write_tree(directory / "opt_state", opt_state)

    (directory / "params_shape.pkl").write_bytes(pickle.dumps(Trap()))
    (directory / "info.json").write_text(json.dumps(info, indent=4))
    (workdir / "ckpts/last_ckpt.txt").write_text(name)
    return directory


def write_tree(directory, tree):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import orbax.checkpoint

        orbax.checkpoint.PyTreeCheckpointer().save(directory, tree, force=True)
