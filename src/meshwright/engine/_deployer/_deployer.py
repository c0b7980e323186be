"""`Deployer`: the services of a run in one object. Each service is a part that does not know it."""

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import jax
from jax.sharding import Mesh

from meshwright.base._internal import explained, explained_as
from meshwright.engine._deployer._batches import Batching
from meshwright.engine._deployer._checkpoints import NamedCheckpoints, Randomness
from meshwright.engine._deployer._log import Log
from meshwright.engine._deployer._named import Names
from meshwright.engine._deployer._placement import Placement
from meshwright.engine._deployer._rounds import Loops
from meshwright.engine._deployer._workdir import Workdir, local_workdir, not_shared_message, open_workdir
from meshwright.errors import LayoutError, UsageError
from meshwright.observe._internal import Tracker, wandb
from meshwright.parallel._internal import make_mesh
from meshwright.processes import _internal as processes
from meshwright.training._internal import RUN_AHEAD, as_seed

T = TypeVar("T")
P = ParamSpec("P")

_SMALL_NBYTES = 1024


class Forwarded(Generic[P, T]):
    """A method of a class that calls `method` of the attribute `part`.

    It keeps that method's arguments, types and docstring. Errors about arguments that it does not have name
    the class.
    """

    def __init__(self, part: str, method: Callable[Concatenate[Any, P], T]):
        self._part, self._method = part, method

    def __set_name__(self, owner: type, name: str) -> None:
        self._method = explained_as(f"{owner.__name__}.{name}")(self._method)

    def __get__(self, instance: Any, owner: type) -> Callable[P, T]:
        method: Any = self._method
        return method if instance is None else MethodType(method, getattr(instance, self._part))


@explained
class Deployer:
    """The services of a run: devices, mesh, randomness, batches, schedules, logs and checkpoints.

    Make it first, on every process: it connects the processes. The methods have the names and meaning of
    RedCoast's Deployer; `docs/coming-from-redco.md` compares them one by one.

    Args:
      seed: The seed of all random numbers.
      num_model_shards: The number of devices over which each copy of the model is split. N means the mesh
        `data=-1,tensor=N`.
      verbose: True shows messages and progress on the screen of process 0.
      workdir: A local directory for logs, metrics, outputs and checkpoints. For checkpoints all processes
        must see the same directory. If they do not, the log says so here, and saving or loading a checkpoint
        raises an error.
      num_processes: The number of processes. If it is not given, it is read from the environment: SLURM,
        MPI, Kubernetes, TPU pods and others are recognised.
      host0_address: The address of process 0, else read from the environment.
      host0_port: The port of process 0, 11111 by default.
      process_id: The index of this process, else read from the environment.
      num_local_devices: The number of this process's accelerators to use, from the first. By default all.
      run_tensorboard: True writes metrics as TensorBoard events into `workdir`.
      wandb_init_kwargs: The arguments of `wandb.init`. If they are given, metrics go to a W&B run.
      mesh: The mesh as a string, "fsdp=4,tensor=2", instead of `num_model_shards`.
      trackers: More writers of metrics: functions `(step, values)`, or functions without arguments that open
        one. They are called on process 0. If one fails, the log says so and it is not called again.

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
        """The mesh of devices. A single device also has one."""
        self.workdir: Path | None = directory
        """The directory of the run."""
        self.seed, self.num_trainers = seed, 0
        self.trained_in: dict[Path, weakref.ref[Any]] = {}
        """The trainer in each run directory, for as long as the trainer exists."""
        self.verbose = verbose and processes.is_lead()
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
        """The loops over rounds of training, and the trainers that take part in them."""
        _log_devices(self.mesh, self._directory, self.log_info)

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
        """Close the files and trackers. This also happens when the program ends."""
        self._log.close()

    @property
    def key(self) -> jax.Array:
        """The key from which `gen_rng` draws. Checkpoints save it."""
        return self._randomness.key

    def track(self, step: int, values: Mapping[str, Any]) -> None:
        """Write metrics to the trackers. On processes other than 0 it does nothing."""
        self._log.track(step, values)

    def run_model_step(self, step_fn: Callable[..., T], input_args: Sequence[Any]) -> T:
        """Return `step_fn(*input_args)`, called inside this mesh so that bare PartitionSpecs refer to it.

        It returns before the step is computed. It waits for older steps, so the host runs at most a few steps
        ahead of the devices.

        Args:
          step_fn: The function to call.
          input_args: Its arguments.
        """
        with jax.set_mesh(self.mesh):
            outputs = step_fn(*input_args)
        # Only small arrays are kept, which cost no memory. A later step waits for an array that was donated.
        arrays = (x for x in jax.tree.leaves(outputs) if isinstance(x, jax.Array))
        self._in_flight.append([x for x in arrays if x.nbytes <= _SMALL_NBYTES])
        if len(self._in_flight) > RUN_AHEAD:
            jax.block_until_ready([x for x in self._in_flight.popleft() if not x.is_deleted()])
        return outputs

    def tell_idle(self, error: LayoutError) -> None:
        """Raise the error about a mesh axis that only repeats a model's work; with several models, log it.

        Another of the models may use the axis.
        """
        if self.num_trainers == 1:
            raise error
        self.log_info(f"! {error}")


def _mesh_text(num_model_shards: int, mesh: str | None) -> str:
    if mesh is not None and num_model_shards != 1:
        raise UsageError(
            f"num_model_shards={num_model_shards} and mesh={mesh!r} are both given. Give one of them."
        )
    if mesh is not None:
        return mesh
    return "data=-1" if num_model_shards == 1 else f"data=-1,tensor={num_model_shards}"


def _start(
    num_processes: int | None,
    host0_address: str | None,
    host0_port: int | None,
    process_id: int | None,
    num_local_devices: int | None,
) -> None:
    if host0_port is not None and host0_address is None:
        raise UsageError(
            f"host0_port={host0_port} needs a host0_address, which is not given.\n"
            "  Give both; or neither, to read them from the environment."
        )
    processes.start_processes(
        coordinator=f"{host0_address}:{host0_port or 11111}" if host0_address else None,
        num_processes=num_processes,
        process_id=process_id,
        local_device_ids=range(num_local_devices) if num_local_devices else None,
    )
    count = jax.local_device_count()
    if num_local_devices not in (None, count):
        raise UsageError(
            f"num_local_devices={num_local_devices}, but this process has {count} devices. Others are hidden "
            "only before the first use of a device, and only accelerators.\n  Make the Deployer first, or "
            "leave num_local_devices out and set CUDA_VISIBLE_DEVICES or --fake-devices."
        )


def _compare(settings: Mapping[str, Any]) -> None:
    """Check that all processes have the same settings and devices. Collective."""
    texts = {name: str(value) for name, value in settings.items()}
    processes.compare("the settings of the deployer", lambda: texts)
    processes.compare_devices()


def _log_devices(mesh: Mesh, directory: Workdir, tell: Callable[[str], None]) -> None:
    """Log the devices and the mesh, and a warning if the processes do not share the workdir."""
    local, whole = jax.local_device_count(), jax.device_count()
    tell(f"{local} of {whole} devices are local; mesh {dict(mesh.shape)}")
    if directory.path is not None and not directory.is_shared:
        tell(not_shared_message(directory.path))
