"""Plans of the axes sequence, expert, pipeline and tensor: traced, compiled for absent H100s, and by hand.

    python benchmarks/plans_held.py                # all: a minute of a core for each
    python benchmarks/plans_held.py ring Mixtral   # those that have one of these words
    python benchmarks/plans_held.py ring --json    # one line of JSON for each

`meshwright[cuda13]` must be installed; `--tiny` goes on without, and plans a small model of its own. Each
case is compiled in a process of its own. By hand is what one device sends over one axis in a step: every
layer keeps nothing (`remat="nothing"`), so its forward pass is exchanged twice. A peak or a sum of bytes that
is more than 10 % off is marked. The bar, of all cases: at most three peaks and one sum are, as on 2026-11-28.

Shapes: L layers, B rows and T positions of a device, n devices of the axis, D features, 2 bytes each.
"""

import argparse
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.models import encoders, losses

import meshwright as mw
from meshwright.base._tree import PyTree
from meshwright.lm._models import decoder, gpt2
from meshwright.plan._hardware import hardware_named
from meshwright.plan._plan import site_of
from meshwright.plan._topology import missing_compiler
from meshwright.plan._values import Plan

OFF = 0.1
MAX_OFF = {"peak": 3, "sent": 1}  # cases
NAMES = "llama-3-8b", "llama-3-405b", "mixtral-8x7b", "qwen-3-30b-a3b"
LLAMA, LARGE, MIXTRAL, QWEN = map(decoder.config, NAMES)


@dataclass(frozen=True)
class Case:
    """A step, its hardware, and what is known by hand."""

    name: str
    experiment: Callable[[], mw.Experiment]
    on: str
    mesh: str
    kinds: tuple[str, ...] = ()
    """The kinds of collectives over `axis` that `by_hand` counts."""
    axis: str = ""
    by_hand: float = 0.0
    """Bytes that one device sends in them."""


@dataclass(frozen=True)
class Held:
    """What a plan says: bytes."""

    peak: int
    sent: int
    counted: int
    """Those that are known by hand."""


def of_decoder(cfg: decoder.Config, num_rows: int, length: int, **more: Any) -> Callable[[], mw.Experiment]:
    more = {"rules": decoder.RULES, **more}
    return lambda: mw.Experiment(
        workdir="runs/held",
        model=functools.partial(decoder.init, cfg),
        loss=functools.partial(decoder.loss, cfg, remat="nothing"),
        optimizer=optax.adamw(3e-4),
        input=mw.Input({"tokens": np.broadcast_to(np.int32(0), (num_rows, length + 1))}, batch_size=num_rows),
        max_steps=100,
        compute_dtype="bfloat16",
        **more,
    )


def of_gpt2(**more: Any) -> mw.Experiment:
    """GPT-2 large, 64 rows of 1,024."""
    cfg = gpt2.Config(model=1280, layers=36, heads=20, feed_forward=5120)
    return mw.Experiment(
        workdir="runs/held",
        rules=gpt2.RULES,
        model=functools.partial(gpt2.init, cfg),
        loss=functools.partial(gpt2.loss, cfg),
        optimizer=optax.adamw(3e-4),
        input=mw.Input({"tokens": np.broadcast_to(np.int32(0), (64, 1025))}, batch_size=64),
        max_steps=100,
        compute_dtype="bfloat16",
        remat="layers:nothing",
        **more,
    )


def of_vit(height: int, width: int) -> mw.Experiment:
    """ViT-L, 1,024 images in patches of 16."""
    tree = encoders.vit(D=1024, F=4096)
    layers = tree["vit"]["encoder"]["layer"]
    layers |= {str(i): layers["0"] for i in range(24)}
    embeddings = tree["vit"]["embeddings"]
    embeddings["position_embeddings"] = jax.ShapeDtypeStruct(
        (1, height * width // 256 + 1, 1024), jnp.float32
    )

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        dtype = params["classifier"]["kernel"].dtype
        return losses.vit(params, {**batch, "image": batch["image"].astype(dtype)}, head_size=64)

    images = np.broadcast_to(np.float32(0), (1024, height, width, 3))
    labels = np.broadcast_to(np.int32(0), (1024,))
    return mw.Experiment(
        workdir="runs/held",
        model=lambda key: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree),
        loss=loss,
        optimizer=optax.adamw(3e-4),
        input=mw.Input({"image": images, "labels": labels}, batch_size=1024),
        max_steps=100,
        compute_dtype="bfloat16",
    )


def all_to_all_of_attention(cfg: decoder.Config, n: int, B: int, T: int) -> float:
    """Queries and results, keys and values change places forward, again and backward."""
    features = 2 * (cfg.heads + cfg.num_key_heads) * cfg.head_size
    return 3 * cfg.layers * B * T * features * 2 * (n - 1) / n


def ring_of_attention(cfg: decoder.Config, n: int, B: int, T: int) -> float:
    """Keys and values are sent on forward, again and backward, and their gradients in float32.

    To balance causal work, rows change places before and after.
    """
    queries, keys = (B * T * heads * cfg.head_size * 2 for heads in (cfg.heads, 2 * cfg.num_key_heads))
    return cfg.layers * ((n - 1) * (3 + 2) * keys + 6 * queries + 3 * keys)


def all_to_all_of_experts(cfg: decoder.Config, n: int, B: int, T: int) -> float:
    """Choices go to their experts and back with room for 1.25 times the mean; forward, again and backward."""
    return 3 * cfg.layers * 2 * 1.25 * B * T * cfg.experts_per_token * cfg.model * 2 * (n - 1) / n


def ring_of_experts(cfg: decoder.Config, n: int, B: int, T: int) -> float:
    """Tokens and results forward, tokens again, and the gradients of both."""
    return cfg.layers * (n - 1) * 5 * B * T * cfg.model * 2


def stages(cfg: decoder.Config, p: int, M: int, B: int, T: int, rounds: int) -> float:
    """At each tick a microbatch goes to the next stage and one up the queue, and back in the gradient."""
    ticks = mw.training.Ring(p, M, rounds).ticks + p - 1
    return 4 * ticks * B * T * cfg.model * 2


def sharded(num_params: float, n: int) -> float:
    """The parameters are gathered twice in bfloat16, and their gradients scattered."""
    return 3 * num_params * 2 * (n - 1) / n


PERMUTED, SWAPPED = ("collective-permute",), ("all-to-all",)
FSDP = (mw.parallel.fsdp(),)
FEW, BOUNDED = replace(LLAMA, key_heads=2), replace(MIXTRAL, expert_capacity=1.25)
LONG = 131_072
CASES = (
    Case("8 B, all-to-all", of_decoder(LLAMA, 1, LONG, rules=FSDP), "h100:8", "sequence=8",
         SWAPPED, "sequence", all_to_all_of_attention(LLAMA, 8, 1, LONG // 8)),
    Case("8 B, all-to-all", of_decoder(LLAMA, 2, LONG), "h100:8", "fsdp=2,sequence=4",
         SWAPPED, "sequence", all_to_all_of_attention(LLAMA, 4, 1, LONG // 4)),
    Case("8 B, 262,144 tokens, ring", of_decoder(LLAMA, 1, 2 * LONG, rules=FSDP), "h100:2x8", "sequence=16",
         PERMUTED, "sequence", ring_of_attention(LLAMA, 16, 1, LONG // 8)),
    Case("8 B, 262,144 tokens", of_decoder(LLAMA, 1, 2 * LONG, rules=FSDP), "h100:8", "sequence=8"),
    Case("8 B, 1,048,576 tokens", of_decoder(LLAMA, 1, 8 * LONG, rules=FSDP), "h100:4x8", "sequence=32"),
    Case("8 B with 2 heads of keys, ring", of_decoder(FEW, 2, LONG), "h100:8", "fsdp=2,sequence=4",
         PERMUTED, "sequence", ring_of_attention(FEW, 4, 1, LONG // 4)),
    Case("Mixtral, 64 rows of 4,096", of_decoder(MIXTRAL, 64, 4096), "h100:2x8", "fsdp=16",
         ("all-gather", "reduce-scatter"), "fsdp", sharded(46.7e9, 16)),
    Case("Mixtral, 64 rows of 4,096", of_decoder(MIXTRAL, 64, 4096), "h100:2x8", "fsdp=2,expert=8",
         SWAPPED, "expert", all_to_all_of_experts(MIXTRAL, 8, 4, 4096)),
    Case("Mixtral, 64 rows of 4,096", of_decoder(MIXTRAL, 64, 4096), "h100:2x8", "fsdp=8,expert=2"),
    Case("Mixtral, 16 rows of 4,096", of_decoder(MIXTRAL, 16, 4096), "h100:2x8", "fsdp=8,expert=2"),
    Case("Mixtral with a capacity, 64 rows", of_decoder(BOUNDED, 64, 4096), "h100:2x8", "fsdp=16"),
    Case("Mixtral with a capacity, 64 rows", of_decoder(BOUNDED, 64, 4096), "h100:2x8", "fsdp=2,expert=8"),
    Case("Qwen 3 30B-A3B, 16 rows of 2,048", of_decoder(QWEN, 16, 2048), "h100:2x8", "fsdp=16",
         ("all-gather", "reduce-scatter"), "fsdp", sharded(30.5e9, 16)),
    Case("Qwen 3 30B-A3B, 16 rows of 4,096", of_decoder(QWEN, 16, 4096), "h100:2x8", "fsdp=2,expert=8",
         PERMUTED, "expert", ring_of_experts(QWEN, 8, 1, 4096)),
    Case("Qwen 3 30B-A3B, 64 rows of 4,096", of_decoder(QWEN, 64, 4096), "h100:2x8", "fsdp=2,expert=8",
         PERMUTED, "expert", ring_of_experts(QWEN, 8, 4, 4096)),
    Case("Qwen 3 30B-A3B, 16 rows of 2,048", of_decoder(QWEN, 16, 2048), "h100:2x8", "fsdp=8,expert=2",
         PERMUTED, "expert", ring_of_experts(QWEN, 2, 1, 2048)),
    Case("8 B, 32 rows of 8,192, GPipe", of_decoder(LLAMA, 32, 8192, microbatches=16), "h100:8",
         "pipeline=4,fsdp=2", PERMUTED, "pipeline", stages(LLAMA, 4, 16, 1, 8192, 1)),
    Case("8 B, 32 rows of 8,192, 2 rounds",
         of_decoder(LLAMA, 32, 8192, microbatches=16, pipeline_rounds=2), "h100:8",
         "pipeline=4,fsdp=2", PERMUTED, "pipeline", stages(LLAMA, 4, 16, 1, 8192, 2)),
    Case("8 B, 32 rows of 8,192, 1F1B",
         of_decoder(LLAMA, 32, 8192, microbatches=16, pipeline_schedule="1f1b"), "h100:8",
         "pipeline=4,fsdp=2"),
    Case("405 B, 2,048 rows of 8,192, 1F1B",
         of_decoder(LARGE, 2048, 8192, microbatches=8, pipeline_schedule="1f1b"), "h100:64x8",
         "pipeline=2,fsdp=256"),
    Case("GPT-2 large, 8 microbatches", functools.partial(of_gpt2, microbatches=8), "h100:8",
         "pipeline=2,fsdp=2,sequence=2"),
    Case("GPT-2 large", of_gpt2, "h100:8", "fsdp=2,tensor=2,sequence=2"),
    Case("ViT-L, 197 positions", functools.partial(of_vit, 224, 224), "h100:8", "data=2,fsdp=4"),
    Case("ViT-L, 197 positions", functools.partial(of_vit, 224, 224), "h100:8", "fsdp=2,tensor=4",
         ("all-reduce",), "tensor", 4 * 24 * 2 * 512 * 197 * 1024 * 2 * 3 / 4),
    Case("ViT-L, 256 positions", functools.partial(of_vit, 240, 272), "h100:8", "fsdp=2,tensor=4",
         ("all-gather", "reduce-scatter"), "tensor", 8 * 24 * 512 * 256 * 1024 * 2 * 3 / 4),
)  # fmt: skip
SMALL = decoder.config("tiny")
TINY = Case(
    "tiny, ring", of_decoder(SMALL, 2, 64), "h100:8", "fsdp=2,sequence=4",
    PERMUTED, "sequence", ring_of_attention(SMALL, 4, 1, 16),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only the cases that have one of these words")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each case")
    parser.add_argument("--case", type=int, help="only the case of this number, in this process")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    asked = parser.parse_args()
    wanted, cases = asked.words, (TINY,) if asked.tiny else CASES
    missing = missing_compiler(hardware_named(TINY.on))
    if asked.case is not None:
        print(json.dumps(held(cases[asked.case], is_compiled=not missing)))
        return
    if missing and not asked.tiny:
        sys.exit(f"To compile for H100s, install {missing}.")
    if missing:
        print(f"Traced alone. To compile for H100s, install {missing}.")
    if not asked.json:
        peaks, sent = "peak GiB: traced  compiled", "sent GiB: traced  compiled"
        print(f"{'':<38}{'on, mesh':<40}{peaks:>27}{sent:>34}{'of axis: traced  compiled  by hand':>40}")
    far = {what: [] for what in MAX_OFF}
    for number, case in enumerate(cases):
        if not wanted or any(word in f"{case.name} {case.mesh}" for word in wanted):
            found = in_own_process(number, *(["--tiny"] if asked.tiny else []))
            show(case, found, asked.json)
            for what in far:
                if is_off(found, what):
                    far[what].append(f"{case.name}, {case.mesh}")
    if not asked.tiny and any(len(far[what]) > most for what, most in MAX_OFF.items()):
        sys.exit(f"missed: more than {MAX_OFF} are off: {far}")


def in_own_process(number: int, *more: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", str(number), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def held(case: Case, *, is_compiled: bool) -> dict[str, Any]:
    """Return what both plans of a case say, or the traced one alone."""
    site = site_of(replace(case.experiment(), mesh=case.mesh), case.on)
    plans = {"traced": site.plan(), **({"compiled": site.plan(site.compile())} if is_compiled else {})}
    told = {name: asdict(found(case, plan)) for name, plan in plans.items()}
    return {"compiled": None, **told, "notes": list(plans.values())[-1].notes}


def is_off(found: dict[str, Any], what: str) -> bool:
    """Return whether a traced peak or sum of bytes is far from the compiled one."""
    traced, compiled = found["traced"], found["compiled"]
    return bool(compiled) and abs(traced[what] / compiled[what] - 1) > OFF


def found(case: Case, plan: Plan) -> Held:
    over = [each for each in plan.exchanges if each.kind in case.kinds and case.axis in each.axes]
    return Held(
        plan.memory.peak,
        sum(each.sent_bytes for each in plan.exchanges),
        sum(each.sent_bytes for each in over),
    )


def show(case: Case, found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        document = {"name": case.name, "on": case.on, "mesh": case.mesh, "by_hand": case.by_hand, **found}
        print(json.dumps(document), flush=True)
        return
    line = f"{case.name:<38}{f'{case.on}, {case.mesh}':<40}"
    traced, compiled = found["traced"], found["compiled"]
    compiled = compiled or dict.fromkeys(traced, math.nan)
    for what, width in (("peak", 17), ("sent", 18)):
        ratio, mark = traced[what] / compiled[what], "!" if is_off(found, what) else " "
        line += f"{traced[what] / 2**30:>{width}.2f}{compiled[what] / 2**30:>10.2f}{ratio:>6.2f}{mark}"
    if case.by_hand:
        counted = (traced["counted"], compiled["counted"], case.by_hand)
        line += "".join(
            f"{each / 2**30:>{width}.2f}" for each, width in zip(counted, (16, 10, 9), strict=True)
        )
    print(line, flush=True)
    for note in found["notes"]:
        print(f"  {note}")


if __name__ == "__main__":
    main()
