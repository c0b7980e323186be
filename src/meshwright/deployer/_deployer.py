"""`Deployer`: what a run needs around its model. Each method is a few lines over a room."""

import contextlib
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import process, tree
from meshwright.deployer import _checkpoints, _messages
from meshwright.errors import LayoutError, UsageError
from meshwright.input import batches
from meshwright.metrics import Writer, jsonl, progress
from meshwright.sharding import Layout, Rule, auto, beside_params, copy_to, fsdp, make_mesh
from meshwright.train import schedule

PyTree = Any


class Deployer:
    """The services of a run: devices, mesh, randomness, batches, schedules, logs and checkpoints.

    Construct it first, on every process: it joins them. Names, arguments and their meaning are those of
    RedCoast's Deployer; `docs/coming-from-redco.md` says for each what is better.

    Args:
      jax_seed: of all randomness.
      n_model_shards: over how many devices each copy of the model is split: the mesh `data=-1,tensor=N`.
      verbose: show messages and progress on the screen of process 0.
      workdir: where logs, metrics, outputs and checkpoints go; all processes must see the same.
      n_processes, host0_address, host0_port, process_id: of a run over several processes. What is not given
        is read from the environment: SLURM, MPI, Kubernetes, TPU pods and others are recognised.
      n_local_devices: use only the first so many devices of this process.
      run_tensorboard: write metrics as TensorBoard events into `workdir`.
      wandb_init_kwargs: start a W&B run with these and send metrics to it.
      mesh: the mesh as a text, "fsdp=4,tensor=2", instead of `n_model_shards`.
      trackers: other writers of metrics, functions `(step, values)`; called on process 0.

    Raises:
      UsageError: the settings contradict each other, or processes are missing.
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
        trackers: Sequence[Writer] = (),
    ):
        if mesh is not None and n_model_shards != 1:
            raise UsageError(f"give n_model_shards={n_model_shards} or mesh={mesh!r}, not both.")
        process.start(
            coordinator=f"{host0_address}:{host0_port or 11111}" if host0_address else None,
            num_processes=n_processes,
            process_id=process_id,
            local_device_ids=range(n_local_devices) if n_local_devices else None,
        )
        self.seed = jax_seed
        self.verbose = verbose and process.is_lead()
        self._mesh = make_mesh(
            mesh or ("data=-1" if n_model_shards == 1 else f"data=-1,tensor={n_model_shards}")
        )
        self.rng = jax.random.key(jax_seed)
        """What `gen_rng` draws from; saved with checkpoints."""
        self._workdir = None if workdir is None else Path(workdir)
        if self._workdir is not None:
            self._workdir.mkdir(parents=True, exist_ok=True)
        self._log = _messages.logger(self._workdir, on_screen=self.verbose)
        self._opened = contextlib.ExitStack()
        for handler in self._log.handlers:
            self._opened.callback(handler.close)
        events = self.in_workdir("run_tensorboard") if run_tensorboard else None
        self.write = _messages.writers(self._opened, self._workdir, events, wandb_init_kwargs, trackers)
        """Where metrics go, as a writer; on processes other than 0 it does nothing."""
        self._close = weakref.finalize(self, self._opened.close)

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

    def get_local_global_micro_batch_size(self, per_device_batch_size: int) -> tuple[int, int]:
        """Return how many examples of a micro-batch this process reads, and how many there are in it.

        "Per device" means for each part into which the mesh's batch axes, data and fsdp, split a batch.
        """
        whole = per_device_batch_size * self.layout().batch_ways
        return whole // jax.process_count(), whole

    def get_accumulate_grad_batches(self, global_batch_size: int, per_device_batch_size: int) -> int:
        """Return in how many micro-batches a batch of `global_batch_size` is computed.

        Raises:
          LayoutError: it is no whole number.
        """
        _, micro = self.get_local_global_micro_batch_size(per_device_batch_size)
        if global_batch_size % micro:
            raise LayoutError(
                f"a batch of {global_batch_size} is no whole number of micro-batches of {micro} "
                f"({per_device_batch_size} × {self.layout().batch_ways} on mesh {dict(self._mesh.shape)}).\n"
                f"  Make it a multiple of {micro}, or change per_device_batch_size."
            )
        return global_batch_size // micro

    def get_model_input_batches(
        self,
        examples: Any,
        per_device_batch_size: int,
        collate_fn: Callable[..., PyTree],
        shuffle: bool,
        shuffle_rng: jax.Array | None,
        desc: str | None,
        is_train: bool = False,
        accumulate_grad_batches: int | None = None,
    ) -> Iterator[PyTree]:
        """Yield one pass over `examples` as global batches on the mesh; what fills no batch is left out.

        `collate_fn(examples=...)` makes a dictionary of arrays of a list of examples; each process calls it
        on its own share.
        """
        _, size = self.get_local_global_micro_batch_size(per_device_batch_size)
        seed = None if shuffle_rng is None else int(jax.random.randint(shuffle_rng, (), 0, 2**31 - 1))
        data = batches(
            examples,
            size,
            self.layout().batch_sharding,
            seed=seed if shuffle else None,
            epochs=1,
            collate=_by_keyword(collate_fn),
        )
        more = f", accumulate_grad_batches = {accumulate_grad_batches}" if accumulate_grad_batches else ""
        name = f"global_micro_batch_size = {size}{more}" if is_train else f"global_batch_size = {size}"
        with contextlib.closing(data):
            yield from self.progress(data, len(examples) // size, f"{desc} ({name})")

    def progress(self, items: Iterator[Any], total: int | None, desc: str) -> Iterator[Any]:
        """Return `items`, whose number is shown on the screen as they are taken."""
        return progress(items, total, desc) if self.verbose else items

    def get_lr_schedule_fn(
        self,
        train_size: int,
        per_device_batch_size: int,
        n_epochs: int,
        learning_rate: float,
        schedule_type: str = "linear",
        warmup_ratio: float = 0.0,
        warmup_steps: int | None = None,
        init_learning_rate: float = 0.0,
        end_learning_rate: float = 0.0,
        *,
        accumulate_grad_batches: int = 1,
    ) -> optax.Schedule:
        """Return the learning rate as a function of the *optimizer* step. See `mw.schedule`.

        The number of steps is that of `n_epochs` over `train_size` examples, an incomplete batch at the end
        of each left out; with `accumulate_grad_batches` so many micro-batches are one step.

        Raises:
          UsageError: there are no steps to decay in, or another impossible combination.
        """
        _, micro = self.get_local_global_micro_batch_size(per_device_batch_size)
        return schedule(
            schedule_type,
            peak=learning_rate,
            steps=n_epochs * (train_size // (micro * accumulate_grad_batches)),
            warmup_steps=warmup_steps,
            warmup_ratio=None if warmup_steps is not None else warmup_ratio,
            init=init_learning_rate or None,
            end=end_learning_rate or None,
        )

    def get_sharding_rules(self, params_shape_or_params: PyTree) -> tuple[Rule, ...]:
        """Return rules, found from the names and shapes of the parameters, that split them over the mesh."""
        return (auto(params_shape_or_params), fsdp())

    def get_params_spec(self, params_shape_or_params: PyTree, params_sharding_rules: Any) -> PyTree:
        """Return a tree of PartitionSpecs. `params_sharding_rules` are rules, or None to leave all whole.

        Raises:
          LayoutError: listing all arrays that the mesh does not divide.
        """
        rules = tuple(params_sharding_rules or ())
        return _specs(self.layout(*rules).shardings({"params": params_shape_or_params})["params"])

    def get_opt_state_spec(
        self, params_shape_or_params: PyTree, params_spec: PyTree, optimizer: optax.GradientTransformation
    ) -> PyTree:
        """Return a tree of PartitionSpecs of the optimizer's state, beside those of the parameters."""
        opt_state = jax.eval_shape(optimizer.init, params_shape_or_params)
        return _specs(beside_params(opt_state, params_shape_or_params, self._shardings(params_spec)))

    def shard_params(self, params: PyTree, params_spec: PyTree, desc: str = "params") -> PyTree:
        """Return copies of `params` on the mesh, split as `params_spec` says. `desc` is for the log."""
        self.log_info(f"sharding {desc}: {tree.nbytes(params) / 1e6:.1f} MB over {dict(self._mesh.shape)}")
        return copy_to(params, self._shardings(params_spec))

    def run_model_step(self, step_fn: Callable[..., Any], input_args: Sequence[Any]) -> Any:
        """Return `step_fn(*input_args)`, called where bare PartitionSpecs mean this mesh."""
        with jax.set_mesh(self._mesh):
            return step_fn(*input_args)

    def _shardings(self, specs: PyTree) -> PyTree:
        is_spec = lambda x: isinstance(x, P)  # noqa: E731
        return jax.tree.map(lambda spec: NamedSharding(self._mesh, spec), specs, is_leaf=is_spec)

    def log_info(self, info: object, title: str | None = None, step: int | None = None) -> None:
        """Tell `info`, framed if it has a title: on the screen of process 0 and in each process's log."""
        self._log.info(_messages.framed(info, title, step))

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write scalar metrics to `workdir/metrics.jsonl` and all trackers, from process 0."""
        self.write(int(step), {name: float(value) for name, value in metrics.items()})

    def save_outputs(self, outputs: Any, desc: str, step: int) -> None:
        """Write `outputs` to `workdir/outputs_{desc}.json`, numbers and arrays as such; from process 0."""
        if process.is_lead() and self._workdir is not None:
            text = json.dumps(outputs, indent=4, default=_as_json)
            (self._workdir / f"outputs_{desc}.json").write_text(text + "\n")
            self.log_info(f"outputs_{desc}.json", title="Outputs written", step=step)

    def in_workdir(self, what: str) -> Path:
        """Return the workdir, which `what` needs.

        Raises:
          UsageError: there is none.
        """
        if self._workdir is None:
            raise UsageError(f"{what} needs a directory to write to: Deployer(workdir=...).")
        return self._workdir

    def forget_after(self, step: int) -> None:
        """Remove the metrics of later steps from `workdir/metrics.jsonl`: a run goes on from here."""
        if process.is_lead() and self._workdir is not None:
            jsonl(self._workdir / "metrics.jsonl", after=step)

    save_ckpt = _checkpoints.save_ckpt
    load_params_shape = _checkpoints.load_params_shape
    load_ckpt = _checkpoints.load_ckpt
    load_last_ckpt = _checkpoints.load_last_ckpt


def _specs(shardings: PyTree) -> PyTree:
    return jax.tree.map(lambda sharding: sharding.spec, shardings)


def _by_keyword(collate_fn: Callable[..., PyTree]) -> Callable[[Sequence[Any]], PyTree]:
    return lambda examples: collate_fn(examples=examples)


def _as_json(value: Any) -> Any:
    return np.asarray(value).tolist() if hasattr(value, "dtype") else str(value)
