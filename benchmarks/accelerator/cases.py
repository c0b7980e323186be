"""The cases: each is a function that measures on the devices at hand and returns what JSON can hold."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw
from meshwright.engine._experiment._compile_ahead import some_rows
from meshwright.engine._experiment._parts import Parts, parts_of
from meshwright.lm._models import decoder
from meshwright.program._flops import count_flops
from meshwright.program._utilisation import peak_flops, utilisation

TOKENS_OF_A_DEVICE = 16_384  # in one step, if rows are shorter
SIZES = {
    "tiny": decoder.Config(),
    "1b": decoder.Config(
        vocabulary=128_256, model=2048, layers=16, heads=32, key_heads=8, feed_forward=8192, tied=True
    ),
    "7b": decoder.config("llama-7b"),
}
ATTENTION = {  # rows, tokens, heads of queries, heads of keys, head size
    None: ((8, 2048, 32, 8, 128), (2, 8192, 32, 8, 128), (1, 32_768, 32, 8, 128), (8, 2048, 32, 32, 64)),
    "tiny": ((2, 256, 4, 2, 16),),
}
LOSS = {None: (8, 2048, 4096, 128_256), "tiny": (2, 64, 32, 256)}  # rows, tokens, features, vocabulary
GENERATION = {None: ("1b", (1, 16), 512), "tiny": ("tiny", (2,), 64)}  # model, rows, tokens of a row
CHECKPOINT = {None: (32, 1 << 26), "tiny": (4, 1 << 16)}  # arrays, numbers in each
TURNS = 7


def device() -> dict[str, Any]:
    here, first = jax.devices(), jax.devices()[0]
    return {
        "kind": first.device_kind,
        "count": len(here),
        "platform": first.platform,
        "memory_bytes": (first.memory_stats() or {}).get("bytes_limit"),
        "peak_bf16_flops": peak_flops(first.device_kind, "bfloat16"),
        "jax": jax.__version__,
        "meshwright": mw.__version__,
    }


def median_seconds(run: Callable[[], Any], turns: int = TURNS) -> float:
    """Return the median time of a call, its results waited for, after one that is not counted."""
    jax.block_until_ready(run())
    took = []
    for _ in range(turns):
        started = time.perf_counter()
        jax.block_until_ready(run())
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def share_of_peak(flops: float, seconds: float) -> float | None:
    peak = peak_flops(jax.devices()[0].device_kind, "bfloat16")
    return flops / seconds / peak if peak else None


def attention(size: str | None = None) -> list[dict[str, Any]]:
    """The gradient of causal attention, forward pass included, of what is chosen here and of the blocks."""
    rows = []
    for shape, form in itertools.product(ATTENTION[size], (None, "blockwise")):
        B, T, N, K, H = shape
        sizes = ((B, T, N, H), (B, T, K, H), (B, T, K, H))
        arrays = [jax.random.normal(jax.random.key(i), each, jnp.bfloat16) for i, each in enumerate(sizes)]

        def total(q: jax.Array, k: jax.Array, v: jax.Array, form: Any = form) -> jax.Array:
            return mw.nn.attention(q, k, v, causal=True, form=form).astype(jnp.float32).sum()

        compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(*arrays).compile()
        seconds = median_seconds(lambda compiled=compiled, arrays=arrays: compiled(*arrays))
        flops = 3.5 * 4 * B * N * T * T * H / 2  # causal: half the scores; a gradient takes 2.5 times as many
        found = {"shape": shape, "form": form or "chosen", "ms": 1e3 * seconds}
        memory = compiled.memory_analysis().temp_size_in_bytes
        rows.append(found | {"share_of_peak": share_of_peak(flops, seconds), "temporary_bytes": memory})
    return rows


def loss(size: str | None = None) -> list[dict[str, Any]]:
    """The gradient of the loss to the features and the head."""
    B, T, D, V = LOSS[size]
    hidden = jax.random.normal(jax.random.key(0), (B, T, D), jnp.bfloat16)
    head = jax.random.normal(jax.random.key(1), (D, V), jnp.bfloat16)
    labels = jax.random.randint(jax.random.key(2), (B, T), 0, V)

    def total(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return mw.nn.cross_entropy(hidden, head, labels).value

    compiled = jax.jit(jax.value_and_grad(total, argnums=(0, 1))).lower(hidden, head).compile()
    seconds = median_seconds(lambda: compiled(hidden, head))
    return [
        {
            "shape": (B, T, D, V),
            "ms": 1e3 * seconds,
            "share_of_peak": share_of_peak(6 * B * T * D * V, seconds),
            "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
            "logits_bytes": 4 * B * T * V,
        }
    ]


def experiment_of(size: str, length: int, remat: str) -> mw.Experiment:
    cfg, devices = SIZES[size], len(jax.devices())
    batch_size = devices * max(1, (4 * length if size == "tiny" else TOKENS_OF_A_DEVICE) // length)
    tokens = np.random.default_rng(0).integers(0, cfg.vocabulary, (2 * batch_size, length + 1), np.int32)
    return mw.Experiment(
        workdir="runs/accelerator",  # where nothing is written: its step alone is used
        mesh="fsdp=-1",
        rules=decoder.RULES,
        model=lambda key: decoder.init(cfg, key),
        loss=lambda params, batch: decoder.loss(cfg, params, batch, remat=remat),
        optimizer=optax.adamw(3e-4, mu_dtype=jnp.bfloat16),
        input=mw.Input({"tokens": tokens}, batch_size=batch_size, item="tokens", items_per_example=length),
        max_steps=100,
        compute_dtype="bfloat16",
    )


def ready_step(experiment: mw.Experiment) -> tuple[Parts, Any, Any]:
    """Return the parts of a run with the step compiled, the first state and a batch."""
    rows = some_rows(experiment)
    parts = parts_of(experiment, mw.make_mesh(experiment.mesh), rows)
    parts.step.compile(parts.target, parts.batch)
    state = mw.training.init_state(experiment.model, experiment.optimizer, 0, parts.layout)
    whole = jax.tree.map(lambda x: np.resize(x, (experiment.input.batch_size, *x.shape[1:])), rows)
    return parts, state, jax.device_put(whole, parts.layout.batch_sharding)


def step(size: str, length: int, remat: str) -> dict[str, Any]:
    """Training steps, with the plan for these devices beside."""
    experiment = experiment_of(size, length, remat)
    parts, state, batch = ready_step(experiment)
    memory = parts.step.compile(parts.target, parts.batch).memory_analysis()

    def run() -> Any:
        nonlocal state
        state, metrics = parts.step(state, batch)
        return metrics["loss"]

    seconds, devices = median_seconds(run), list(parts.layout.mesh.devices.flat)
    counted = count_flops(parts.step.jaxpr)
    planned = mw.plan.plan_step(experiment, mw.plan._internal.hardware_here(), compiled=False)
    return {
        "batch_size": experiment.input.batch_size,
        "num_params": planned.num_params,
        "seconds": seconds,
        "tokens_per_second_and_device": experiment.input.batch_size * length / seconds / len(devices),
        **utilisation(counted, 1 / seconds, devices),
        "compiled_bytes": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        "peak_bytes": (devices[0].memory_stats() or {}).get("peak_bytes_in_use"),
        "planned_seconds": planned.time.seconds,
        "planned_bytes": planned.memory.peak,
    }


def generation(size: str | None = None) -> list[dict[str, Any]]:
    """Greedy tokens, beside the time that reading all weights takes here, which each token must wait for."""
    name, numbers_of_rows, length = GENERATION[size]
    cfg = SIZES[name]
    params = jax.jit(lambda: decoder.init(cfg, jax.random.key(0), dtype=jnp.bfloat16))()
    read = jax.jit(lambda params: [jnp.max(x) for x in jax.tree.leaves(params)])
    reading = median_seconds(lambda: read(params))
    nbytes = sum(x.nbytes for x in jax.tree.leaves(params))
    model, short = mw.lm.with_cache(cfg), length // 4
    rows = []
    for num_rows in numbers_of_rows:
        prompts = list(np.random.default_rng(0).integers(0, cfg.vocabulary, (num_rows, length // 8)))
        seconds = [  # the difference is without the prompts
            median_seconds(
                lambda count=count, prompts=prompts, num_rows=num_rows: mw.lm.generate(
                    model,
                    params,
                    prompts,
                    mw.lm.Decoding(max_new_tokens=count),
                    length=length,
                    slots=num_rows,
                ),
                turns=3,
            )
            for count in (short, 3 * short)
        ]
        each = (seconds[1] - seconds[0]) / (2 * short)
        rows.append(
            {"rows": num_rows, "ms": 1e3 * each, "reading_ms": 1e3 * reading, "weights_bytes": nbytes}
        )
    return rows


def loop(size: str | None = None) -> dict[str, Any]:
    """What `mw.run` adds to a step of some milliseconds: with a run directory, reports and a watchdog."""
    width, num_steps = (4096, 300) if size is None else (64, 60)
    x = np.ones((256, width), np.float32)

    def model(key: jax.Array) -> Any:
        return {name: jax.random.normal(key, (width, width)) / width for name in "abcd"}

    def value(params: Any, batch: Any) -> jax.Array:
        out = batch["x"]
        for name in "abcd":
            out = jnp.tanh(out @ params[name])
        return (out**2).mean()

    with tempfile.TemporaryDirectory() as folder:
        experiment = mw.Experiment(
            workdir=folder,
            model=model,
            loss=value,
            optimizer=optax.sgd(1e-3),
            input=mw.Input({"x": x}, batch_size=len(x)),
            max_steps=num_steps,
            logging=mw.Logging(every=20),
        )
        outcome = mw.run(experiment)
    parts, state, batch = ready_step(experiment)
    wait = mw.training.at_most_ahead()
    for at in range(num_steps + 1):
        if at == 1:  # the first step is not counted
            started = time.perf_counter()
        state, metrics = parts.step(state, batch)
        wait(metrics["loss"])
    jax.block_until_ready(metrics["loss"])
    bare = (time.perf_counter() - started) / num_steps
    return {"bare_ms": 1e3 * bare, "run_ms": 1e3 * outcome.seconds / num_steps}


def checkpoint(size: str | None = None) -> dict[str, Any]:
    """A state is saved from the devices and restored to them."""
    count, numbers = CHECKPOINT[size]
    layout = mw.Layout(mw.make_mesh("fsdp=-1"))
    sharding = jax.NamedSharding(layout.mesh, jax.P("fsdp"))
    make = jax.jit(lambda key: jax.random.normal(key, (numbers,)), out_shardings=sharding)
    state = {f"w{i}": make(jax.random.key(i)) for i in range(count)}
    jax.block_until_ready(state)
    nbytes = 4 * count * numbers
    with tempfile.TemporaryDirectory() as folder, mw.Checkpoints(folder) as checkpoints:
        started = time.perf_counter()
        checkpoints.save(1, state)
        blocked = time.perf_counter() - started
        checkpoints.wait()
        saved = time.perf_counter() - started
        target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
        started = time.perf_counter()
        restored = checkpoints.restore(1, target, otherwise=lambda: state)
        jax.block_until_ready(restored)
        took = time.perf_counter() - started
    equal = all(bool((restored[name] == state[name]).all()) for name in state)
    figures = {"nbytes": nbytes, "blocked_seconds": blocked, "saved_seconds": saved, "restored_seconds": took}
    return figures | {"equal": equal}


def reading(size: str | None = None) -> dict[str, Any]:
    """The share of the time that a run waits for examples that threads collate from a list."""
    shape, batch_size = ((224, 224, 3), 128) if size is None else ((16, 16, 3), 16)
    images = [{"image": np.full(shape, i % 255, np.uint8)} for i in range(4 * batch_size)]
    waits: list[float] = []

    def keep(step: int, values: Any) -> None:
        if "input_wait" in values:
            waits.append(values["input_wait"])

    def value(params: Any, batch: Any) -> jax.Array:
        return (batch["image"].astype(jnp.float32).mean((1, 2)) @ params["w"]).mean() ** 2

    with tempfile.TemporaryDirectory() as folder:
        outcome = mw.run(
            mw.Experiment(
                workdir=folder,
                model=lambda key: {"w": jnp.ones((3, 8))},
                loss=value,
                optimizer=optax.sgd(1e-3),
                input=mw.Input(images, batch_size=batch_size),
                max_steps=40,
                logging=mw.Logging(every=10, trackers=[keep]),
            )
        )
    return {
        "examples_per_second": 40 * batch_size / outcome.seconds,
        "bytes_per_second": 40 * batch_size * int(np.prod(shape)) / outcome.seconds,
        "input_wait": statistics.median(waits),
    }


def profile(size: str, length: int, remat: str) -> dict[str, Any]:
    """The operations of a step that take the longest."""
    parts, state, batch = ready_step(experiment_of(size, length, remat))
    with tempfile.TemporaryDirectory() as folder:
        with mw.observe.tracer(folder, start_steps=(4,), num_steps=3) as trace:
            mw.fit(parts.step, state, itertools.repeat(batch), max_steps=7, trace=trace)
        summary = mw.observe.summarize(mw.observe._internal.find_profiles(Path(folder))[0])
    return {"text": str(summary).partition("\n")[2]}


CASES: dict[str, Callable[..., Any]] = {
    "device": device,
    "attention": attention,
    "loss": loss,
    "generation": generation,
    "step": step,
    "loop": loop,
    "checkpoint": checkpoint,
    "input": reading,
    "profile": profile,
}
