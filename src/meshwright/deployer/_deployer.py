"""`Deployer`: what a run needs around its model, put together from parts that do not know it."""

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import jax
from jax.sharding import Mesh

from meshwright import process
from meshwright.deployer._batches import Batching
from meshwright.deployer._checkpoints import NamedCheckpoints
from meshwright.deployer._forwarded import Forwarded
from meshwright.deployer._log import Log
from meshwright.deployer._named import Names
from meshwright.deployer._placement import Placement
from meshwright.deployer._randomness import Randomness
from meshwright.deployer._rounds import Loops
from meshwright.deployer._workdir import Workdir, apart, local_workdir, open_workdir
from meshwright.errors import LayoutError, UsageError
from meshwright.metrics import Tracker, wandb
from meshwright.sharding import make_mesh
from meshwright.train import RUN_AHEAD, as_seed
from meshwright.unknown_arguments import explained

T = TypeVar("T")

_SMALL_NBYTES = 1024


@explained
class Deployer:
    """The services of a run: devices, mesh, randomness, batches, schedules, logs and checkpoints.

    Construct it first, on every process: it joins them. Names, arguments and their meaning are those of
    RedCoast's Deployer; `docs/coming-from-redco.md` says for each what is better.

    Args:
      seed: All randomness is drawn from it.
      num_model_shards: Each copy of the model is split over so many devices: the mesh `data=-1,tensor=N`.
      verbose: Show messages and progress on the screen of process 0.
      workdir: Logs, metrics, outputs and checkpoints go there, a directory of this machine. For checkpoints
        all processes must see the same; that they do not is told here, and an error where one is saved or
        looked for.
      num_processes, host0_address, host0_port, process_id: They describe a run over processes. What is
        not given is read from the environment: SLURM, MPI, Kubernetes, TPU pods and others are recognised.
      num_local_devices: Use only the first so many devices of this process.
      run_tensorboard: Write metrics as TensorBoard events into `workdir`.
      wandb_init_kwargs: Start a W&B run with these and send metrics to it.
      mesh: The mesh as a text, "fsdp=4,tensor=2", instead of `num_model_shards`.
      trackers: Other writers of metrics, functions `(step, values)`, or of nothing that open one; called on
        process 0. One that fails is told of and put aside.

    Raises:
      UsageError: The settings contradict each other, the workdir is an address, or processes are missing.
      LayoutError: The mesh does not fit the devices.

    Example:
      >>> deployer = mw.Deployer(seed=0, num_model_shards=2, verbose=False)
      >>> dict(deployer.mesh.shape)
      {'data': 4, 'tensor': 2}
    """

    def __init__(
        self,
        seed: int,
        num_model_shards: int = 1,
        verbose: bool = True,
        workdir: str | Path | None = None,
        num_processes: int | None = None,
        host0_address: str | None = None,
        host0_port: int | None = None,
        process_id: int | None = None,
        num_local_devices: int | None = None,
        run_tensorboard: bool = False,
        wandb_init_kwargs: Mapping[str, Any] | None = None,
        *,
        mesh: str | None = None,
        trackers: Sequence[Tracker] = (),
    ):
        directory, mesh_text = local_workdir(workdir), _mesh_text(num_model_shards, mesh)
        seed = as_seed(seed, "seed")
        _start(num_processes, host0_address, host0_port, process_id, num_local_devices)
        _compare({"seed": seed, "mesh": mesh_text, "workdir": directory is not None})
        self.mesh: Mesh = make_mesh(mesh_text)
        """The mesh of devices; of one device, too."""
        self.workdir: Path | None = directory
        """The directory of the run."""
        self.seed, self.num_trainers = seed, 0
        self.trained_in: dict[Path, weakref.ref[Any]] = {}
        """By run directory what trains there, as long as it lives."""
        self.verbose = verbose and process.is_lead()
        self._in_flight: deque[list[jax.Array]] = deque()
        self._randomness, self._directory = Randomness(self.seed), open_workdir(directory)
        if wandb_init_kwargs is not None:
            trackers = *trackers, partial(wandb, **wandb_init_kwargs)
        events = self._directory.needed_for("run_tensorboard") if run_tensorboard else None
        self._log = Log(directory, events, trackers, on_screen=self.verbose)
        self._placement = Placement(self.mesh, self._log.log_info)
        self._batching = Batching(self._placement.layout(), self._log)
        self._checkpoints = NamedCheckpoints(
            Names(self._directory), self._placement, self._randomness, self._log.log_info
        )
        self.loops = Loops(self._directory, self._randomness, self.log_info)
        """Rounds of training, and the trainers that take part in them."""
        _introduce(self.mesh, self._directory, self.log_info)

    layout = Forwarded("_placement", Placement.layout)
    get_sharding_rules = Forwarded("_placement", Placement.get_sharding_rules)
    get_params_spec = Forwarded("_placement", Placement.get_params_spec)
    get_opt_state_spec = Forwarded("_placement", Placement.get_opt_state_spec)
    shard_params = Forwarded("_placement", Placement.shard_params)

    get_local_global_micro_batch_size = Forwarded("_batching", Batching.get_local_global_micro_batch_size)
    get_accumulate_grad_batches = Forwarded("_batching", Batching.get_accumulate_grad_batches)
    get_model_input_batches = Forwarded("_batching", Batching.get_model_input_batches)
    get_lr_schedule_fn = Forwarded("_batching", Batching.get_lr_schedule_fn)

    save_ckpt = Forwarded("_checkpoints", NamedCheckpoints.save_ckpt)
    load_params_shape = Forwarded("_checkpoints", NamedCheckpoints.load_params_shape)
    load_ckpt = Forwarded("_checkpoints", NamedCheckpoints.load_ckpt)
    load_last_ckpt = Forwarded("_checkpoints", NamedCheckpoints.load_last_ckpt)

    gen_rng = Forwarded("_randomness", Randomness.draw)
    gen_model_step_rng = Forwarded("_randomness", Randomness.draw)

    log_info = Forwarded("_log", Log.log_info)
    log_detail = Forwarded("_log", Log.log_detail)
    log_metrics = Forwarded("_log", Log.log_metrics)
    save_outputs = Forwarded("_log", Log.save_outputs)
    progress = Forwarded("_log", Log.progress)

    shared_workdir = Forwarded("_directory", Workdir.shared_for)
    rounds = Forwarded("loops", Loops.rounds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and trackers. It happens by itself when the program ends."""
        self._log.close()

    @property
    def key(self) -> jax.Array:
        """The key that `gen_rng` draws from; saved with checkpoints."""
        return self._randomness.key

    def track(self, step: int, values: Mapping[str, Any]) -> None:
        """Write metrics to the trackers; on processes other than 0, do nothing."""
        self._log.track(step, values)

    def run_model_step(self, step_fn: Callable[..., T], input_args: Sequence[Any]) -> T:
        """Return `step_fn(*input_args)`, called where bare PartitionSpecs mean this mesh.

        It returns before the step is computed, but a host that waits for nothing cannot run ahead of its
        devices by more than a few steps.
        """
        with jax.set_mesh(self.mesh):
            outputs = step_fn(*input_args)
        # What is small holds no memory while it waits here. What was donated since is waited for by others.
        arrays = (x for x in jax.tree.leaves(outputs) if isinstance(x, jax.Array))
        self._in_flight.append([x for x in arrays if x.nbytes <= _SMALL_NBYTES])
        if len(self._in_flight) > RUN_AHEAD:
            jax.block_until_ready([x for x in self._in_flight.popleft() if not x.is_deleted()])
        return outputs

    def tell_idle(self, error: LayoutError) -> None:
        """Raise the error about a mesh axis that only repeats a model's work; of several models, tell it.

        Of those another may use the axis.
        """
        if self.num_trainers == 1:
            raise error
        self.log_info(f"! {error}")


def _mesh_text(num_model_shards: int, mesh: str | None) -> str:
    if mesh is not None and num_model_shards != 1:
        raise UsageError(f"give num_model_shards={num_model_shards} or mesh={mesh!r}, not both.")
    return mesh or ("data=-1" if num_model_shards == 1 else f"data=-1,tensor={num_model_shards}")


def _start(
    num_processes: int | None,
    host0_address: str | None,
    host0_port: int | None,
    process_id: int | None,
    num_local_devices: int | None,
) -> None:
    if host0_port is not None and host0_address is None:
        raise UsageError(
            f"host0_port={host0_port} needs a host0_address. Give both, or neither to find them."
        )
    process.start(
        coordinator=f"{host0_address}:{host0_port or 11111}" if host0_address else None,
        num_processes=num_processes,
        process_id=process_id,
        local_device_ids=range(num_local_devices) if num_local_devices else None,
    )


def _compare(settings: Mapping[str, Any]) -> None:
    """Compare the settings, and the devices, with those of the other processes. Collective."""
    said = {name: str(value) for name, value in settings.items()}
    process.compare("the settings of the deployer", lambda: said)
    process.compare_devices()


def _introduce(mesh: Mesh, directory: Workdir, tell: Callable[[str], None]) -> None:
    """Tell of the devices, and of what will not work."""
    local, whole = jax.local_device_count(), jax.device_count()
    tell(f"{local} of {whole} devices are local; mesh {dict(mesh.shape)}")
    if directory.path is not None and not directory.is_shared:
        tell(apart(directory.path))
