"""`Deployer`: what a run needs around its model. Each method is a few lines over a room."""

import contextlib
import json
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import jax
from jax.sharding import Mesh

from meshwright import process
from meshwright.deployer import _batches, _checkpoints, _directory, _messages, _placement
from meshwright.deployer._plain import plain, reported
from meshwright.errors import LayoutError, UsageError
from meshwright.metrics import Bar, Tracker, jsonl, newest_step, sync_jsonl, wandb
from meshwright.sharding import Layout, Rule, make_mesh
from meshwright.storage import local_path
from meshwright.train import RUN_AHEAD, key_of

T = TypeVar("T")

_SMALL_NBYTES = 1024
_NUM_SHOWN = 10
_INSTEAD = "Give a workdir of this machine; `save_ckpt` takes addresses."


class Deployer:
    """The services of a run: devices, mesh, randomness, batches, schedules, logs and checkpoints.

    Construct it first, on every process: it joins them. Names, arguments and their meaning are those of
    RedCoast's Deployer; `docs/coming-from-redco.md` says for each what is better.

    Args:
      jax_seed: of all randomness.
      n_model_shards: over how many devices each copy of the model is split: the mesh `data=-1,tensor=N`.
      verbose: show messages and progress on the screen of process 0.
      workdir: where logs, metrics, outputs and checkpoints go, a directory of this machine. For checkpoints
        all processes must see the same; that they do not is told here, and an error where one is saved or
        looked for.
      n_processes, host0_address, host0_port, process_id: of a run over several processes. What is not given
        is read from the environment: SLURM, MPI, Kubernetes, TPU pods and others are recognised.
      n_local_devices: use only the first so many devices of this process.
      run_tensorboard: write metrics as TensorBoard events into `workdir`.
      wandb_init_kwargs: start a W&B run with these and send metrics to it.
      mesh: the mesh as a text, "fsdp=4,tensor=2", instead of `n_model_shards`.
      trackers: other writers of metrics, functions `(step, values)`, or of nothing that open one; called on
        process 0. One that fails is told of and put aside.

    Raises:
      UsageError: the settings contradict each other, the workdir is an address, or processes are missing.
      LayoutError: the mesh does not fit the devices.
    """

    def __init__(
        self,
        jax_seed: int,
        n_model_shards: int = 1,
        verbose: bool = True,
        workdir: str | Path | None = None,
        n_processes: int | None = None,
        host0_address: str | None = None,
        host0_port: int | None = None,
        process_id: int | None = None,
        n_local_devices: int | None = None,
        run_tensorboard: bool = False,
        wandb_init_kwargs: Mapping[str, Any] | None = None,
        *,
        mesh: str | None = None,
        trackers: Sequence[Tracker] = (),
    ):
        self._workdir = None if workdir is None else local_path(workdir, _INSTEAD).absolute()
        if not 0 <= jax_seed < 2**32:
            raise UsageError(f"jax_seed={jax_seed}: it must be from 0 to 2**32 - 1.")
        if mesh is not None and n_model_shards != 1:
            raise UsageError(f"give n_model_shards={n_model_shards} or mesh={mesh!r}, not both.")
        if host0_port is not None and host0_address is None:
            raise UsageError(
                f"host0_port={host0_port} needs a host0_address. Give both, or neither to find them."
            )
        process.start(
            coordinator=f"{host0_address}:{host0_port or 11111}" if host0_address else None,
            num_processes=n_processes,
            process_id=process_id,
            local_device_ids=range(n_local_devices) if n_local_devices else None,
        )
        settings = {
            "jax_seed": jax_seed,
            "mesh": mesh,
            "n_model_shards": n_model_shards,
            "workdir": bool(workdir),
        }
        process.compare(
            "the settings of the deployer", lambda: {name: str(value) for name, value in settings.items()}
        )
        process.compare_devices()
        self.seed = int(jax_seed)
        self.rng = key_of(self.seed)
        """What `gen_rng` draws from; saved with checkpoints."""
        self.verbose = verbose and process.is_lead()
        self.num_trainers = 0
        """How many `Trainer`s were made for it."""
        self._mesh = make_mesh(
            mesh or ("data=-1" if n_model_shards == 1 else f"data=-1,tensor={n_model_shards}")
        )
        self._in_flight: deque[list[jax.Array]] = deque()
        self._is_shared = self._workdir is None or _directory.prepare(self._workdir)
        self._opened = contextlib.ExitStack()
        self._close = weakref.finalize(self, self._opened.close)
        self._log = _messages.logger(self._opened, self._workdir, on_screen=self.verbose)
        events = self.in_workdir("run_tensorboard") if run_tensorboard else None
        wanted = trackers if wandb_init_kwargs is None else (*trackers, partial(wandb, **wandb_init_kwargs))
        writers = partial(_messages.metrics_writers, self._opened, self._workdir, events, wanted)
        self.write, self._board = process.together(lambda: writers(self._log.warning))
        """Where metrics go, as a writer; on processes other than 0 it does nothing."""
        self._introduce()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and trackers. It happens by itself when the program ends."""
        self._close()

    @property
    def mesh(self) -> Mesh:
        """The mesh of devices; of one device, too."""
        return self._mesh

    @property
    def workdir(self) -> Path | None:
        """The directory of the run."""
        return self._workdir

    def layout(self, *rules: Rule) -> Layout:
        """Return the mesh with rules for what is placed on it; see `Layout`."""
        return Layout(self._mesh, rules)

    def gen_rng(self) -> jax.Array:
        """Return a new PRNG key, the same on all processes."""
        self.rng, new = jax.random.split(self.rng)
        return new

    def gen_model_step_rng(self) -> jax.Array:
        """Return a new PRNG key for one step over the whole mesh."""
        return self.gen_rng()

    def run_model_step(self, step_fn: Callable[..., T], input_args: Sequence[Any]) -> T:
        """Return `step_fn(*input_args)`, called where bare PartitionSpecs mean this mesh.

        It returns before the step is computed, but a host that waits for nothing cannot run ahead of its
        devices by more than a few steps.
        """
        with jax.set_mesh(self._mesh):
            outputs = step_fn(*input_args)
        # What is small holds no memory while it waits here. What was donated since is waited for by others.
        arrays = (x for x in jax.tree.leaves(outputs) if isinstance(x, jax.Array))
        self._in_flight.append([x for x in arrays if x.nbytes <= _SMALL_NBYTES])
        if len(self._in_flight) > RUN_AHEAD:
            jax.block_until_ready([x for x in self._in_flight.popleft() if not x.is_deleted()])
        return outputs

    def progress(self, items: Iterable[T], total: int | None, desc: str) -> Bar[T]:
        """Return an iterator over `items` that shows on the screen how many were taken."""
        return Bar(items, total, desc, shown=self.verbose)

    def log_info(self, info: object, title: str | None = None, step: int | None = None) -> None:
        """Tell `info`, framed if it has a title: on the screen of process 0 and in each process's log."""
        self._log.info(_messages.framed(info, title, step))
        if title is not None and self._board is not None:
            self._board(step or 0, {title: _messages.markdown(str(info))})

    def tell_idle(self, error: LayoutError) -> None:
        """Raise the error about a mesh axis that only repeats a model's work; of several models, tell it.

        Of those another may use the axis.
        """
        if self.num_trainers == 1:
            raise error
        self.log_info(f"! {error}")

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write metrics to `workdir/metrics.jsonl` and all trackers, from process 0; see `mw.metrics.Values`.

        One called `step` is left out: all places have the step already.

        Raises:
          UsageError: one is nothing that a report may hold.
        """
        if process.is_lead():
            self.write(int(step), reported({name: x for name, x in metrics.items() if name != "step"}))

    def save_outputs(self, outputs: Any, desc: str, step: int) -> None:
        """Write `outputs` to `workdir/outputs_{desc}.json`, numbers as numbers; from process 0."""
        if not process.is_lead() or self._workdir is None:
            return
        outputs, path = plain(outputs), self._workdir / f"outputs_{desc}.json"
        path.write_text(_as_json(outputs) + "\n")
        self.log_info(f"outputs ({desc}) are in {path}")
        if self._board is not None:
            some = outputs[:_NUM_SHOWN] if isinstance(outputs, list) else outputs
            self._board(int(step), {"Output Samples": _messages.markdown(_as_json(some))})

    def in_workdir(self, what: str) -> Path:
        """Return the workdir, which `what` needs.

        Raises:
          UsageError: there is none.
        """
        if self._workdir is None:
            raise UsageError(f"{what} needs a directory to write to: Deployer(workdir=...).")
        return self._workdir

    def shared_workdir(self, what: str) -> Path:
        """Return the workdir, which `what` needs on all processes.

        Raises:
          UsageError: there is none, or each process has its own.
        """
        workdir = self.in_workdir(what)
        if not self._is_shared:
            raise UsageError(f"{what} needs one directory for all processes.\n  {_directory.apart(workdir)}")
        return workdir

    def forget_after(self, step: int) -> None:
        """Remove the metrics of later steps from `workdir/metrics.jsonl`: a run goes on from here."""
        if process.is_lead() and self._workdir is not None:
            path = self._workdir / "metrics.jsonl"
            jsonl(path, after=step)
            newest = newest_step(path)
            if newest is not None and newest < step:
                self.log_info(f"{path} ends at step {newest}: what was reported up to step {step} is lost")
        if self._board is not None:
            self._board.forget_after(step)

    def keep_metrics(self) -> None:
        """Put `workdir/metrics.jsonl` on disk, for before a checkpoint counts."""
        if self._workdir is not None:
            sync_jsonl(self._workdir / "metrics.jsonl")

    get_local_global_micro_batch_size = _batches.get_local_global_micro_batch_size
    get_accumulate_grad_batches = _batches.get_accumulate_grad_batches
    get_model_input_batches = _batches.get_model_input_batches
    get_lr_schedule_fn = _batches.get_lr_schedule_fn

    get_sharding_rules = _placement.get_sharding_rules
    get_params_spec = _placement.get_params_spec
    get_opt_state_spec = _placement.get_opt_state_spec
    shard_params = _placement.shard_params

    save_ckpt = _checkpoints.save_ckpt
    load_params_shape = _checkpoints.load_params_shape
    load_ckpt = _checkpoints.load_ckpt
    load_last_ckpt = _checkpoints.load_last_ckpt

    def _introduce(self) -> None:
        """Tell of the devices, and of what will not work."""
        local, whole = jax.local_device_count(), jax.device_count()
        self.log_info(f"{local} of {whole} devices are local; mesh {dict(self._mesh.shape)}")
        if self._workdir is not None and not self._is_shared:
            self.log_info(_directory.apart(self._workdir))


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=4, default=str)
