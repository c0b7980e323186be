"""The gradient of the text example's loss: the head gathered once beside once for each chunk of positions.

**time** is that of whole gradients of `decoder.Config()` on one device, 2 rows. "before" is what the decoder
did before `mw.nn.cross_entropy`: chunks of 256 positions under `jax.checkpoint`, whose logits the gradient
computes again. **bytes** and **memory** are those of the compiled loss alone over `fsdp=8`, with a vocabulary
of 8,192. The bars: at most 1.05 × the time, and bytes that do not grow with the length.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import meshwright as mw
from meshwright.lm._models import decoder

LENGTHS, TINY_LENGTHS = (512, 2048), (256, 512)
MOST_TIME = 1.05
ROWS, VOCABULARY, MODEL = 8, 8192, 64


def before(hidden, head, labels):
    """The loss in chunks of positions, each of which multiplies with the head and forgets the logits."""

    @jax.checkpoint
    def one(inputs):
        x, of = map(mw.parallel.shard_batch_dim, inputs)
        logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, of)

    return jax.lax.map(one, (hidden.swapaxes(0, 1), labels.T), batch_size=256).sum()


def once(hidden, head, labels):
    return mw.nn.cross_entropy(hidden, head, labels).total


def per_chunk(hidden, head, labels):
    return mw.nn.cross_entropy(hidden, head, labels, gather="per chunk").total


FORMS = {"before": before, "once": once, "per chunk": per_chunk}
TIMED = ("before", "once")


def took(length: int, turns: int) -> dict[str, float]:
    """Return the median milliseconds of a gradient before and now, and the median ratio of turns."""
    cfg = decoder.Config()
    params = jax.device_put(decoder.init(cfg, jax.random.key(0)), jax.devices()[0])
    tokens = jax.random.randint(jax.random.key(1), (2, length + 1), 0, cfg.vocabulary)

    def loss(form, params):
        x = decoder.features(cfg, params, tokens[:, :-1])
        return form(x, decoder.head(cfg, params), tokens[:, 1:])

    calls = {
        name: jax.jit(jax.grad(lambda p, form=form: loss(form, p))).lower(params).compile()
        for name, form in FORMS.items()
        if name in TIMED
    }
    seconds = []
    for _ in range(turns + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            jax.block_until_ready(call(params))
            seconds.append((name, time.perf_counter() - started))
    of = {name: [each for found, each in seconds if found == name][1:] for name in TIMED}
    ratio = statistics.median(now / then for now, then in zip(of["once"], of["before"], strict=True))
    return {f"{name}_ms": 1e3 * statistics.median(each) for name, each in of.items()} | {"time": ratio}


def compiled(length: int, form) -> dict[str, float]:
    """Return the MiB that a device sends in a gradient of the loss, and those of its temporary memory."""
    layout = mw.Layout(mw.make_mesh("fsdp=8"), (mw.parallel.match("head", "fsdp", "tensor"),))
    given = {"hidden": (ROWS * 8, length, MODEL), "head": (MODEL, VOCABULARY), "labels": (ROWS * 8, length)}
    arrays = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in given.items()}
    head = layout.place({"head": arrays["head"]})["head"]
    rows = [
        jax.ShapeDtypeStruct(given[name], dtype, sharding=layout.batch_sharding)
        for name, dtype in (("hidden", jnp.float32), ("labels", jnp.int32))
    ]
    split = (layout.batch_sharding, head.sharding)
    with jax.set_mesh(layout.mesh):
        call = jax.jit(jax.grad(form, (0, 1)), out_shardings=split).lower(rows[0], head, rows[1]).compile()
    found = mw.observe.collectives(call.as_text(), layout.mesh)
    return {
        "sent_mib": sum(each.times * each.sent_nbytes for each in found) / 2**20,
        "memory_mib": call.memory_analysis().temp_size_in_bytes / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    lengths, turns = (TINY_LENGTHS, 1) if options.tiny else (LENGTHS, options.turns)
    rows = [
        {"length": length, **took(length, turns)}
        | {name: compiled(length, form) for name, form in FORMS.items()}
        for length in lengths
    ]
    chunk, head = ROWS * 256 * VOCABULARY * 4 / 2**20, MODEL * VOCABULARY * 4 / 2**20
    print(f"a chunk of logits is {chunk:.0f} MiB, the head {head:.0f}")
    for row in rows:
        times = f"{row['before_ms']:.0f} ms before, {row['once_ms']:.0f} now, × {row['time']:.2f}"
        print(f"{row['length']} tokens: {times}")
        for name in FORMS:
            sent, memory = row[name]["sent_mib"], row[name]["memory_mib"]
            print(f"  {name:10} sent {sent:6.1f} MiB, memory {memory:6.1f} MiB")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    grows = rows[0]["once"]["sent_mib"] != rows[-1]["once"]["sent_mib"]
    slow = [row["length"] for row in rows if row["time"] > MOST_TIME and not options.tiny]
    if slow or grows:
        raise SystemExit(f"over the bars: time at {slow} tokens" + (", and bytes grow" if grows else ""))


if __name__ == "__main__":
    main()
