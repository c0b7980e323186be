"""The gradient of causal attention: all scores at once beside block by block, time and temporary memory.

One device, 4 heads of 64 features, float32. The two take turns; ratios are medians over turns. The bars: from
1,024 tokens on blocks take at most 1.1 × the time, and from 2,048 on at most half the memory.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import meshwright as mw

LENGTHS, TINY_LENGTHS = (513, 1024, 2048, 4096), (513, 2048)
MOST_TIME, MOST_MEMORY = 1.1, 0.5


def gradient(form: str):
    def total(q, k, v):
        return mw.nn.attention(q, k, v, causal=True, form=form).sum()

    return jax.jit(jax.grad(total, argnums=(0, 1, 2)))


def seconds(compiled, arrays) -> float:
    started = time.perf_counter()
    jax.block_until_ready(compiled(*arrays))
    return time.perf_counter() - started


def measure(length: int, turns: int) -> dict[str, float]:
    arrays = [jax.random.normal(jax.random.key(i), (1, length, 4, 64), jnp.float32) for i in range(3)]
    compiled = {form: gradient(form).lower(*arrays).compile() for form in ("dense", "blockwise")}
    for each in compiled.values():
        seconds(each, arrays)
    took = [{form: seconds(each, arrays) for form, each in compiled.items()} for _ in range(turns)]
    memory = {form: each.memory_analysis().temp_size_in_bytes for form, each in compiled.items()}
    return {
        "length": length,
        "dense_ms": 1e3 * statistics.median(each["dense"] for each in took),
        "blockwise_ms": 1e3 * statistics.median(each["blockwise"] for each in took),
        "time": statistics.median(each["blockwise"] / each["dense"] for each in took),
        "dense_mib": memory["dense"] / 2**20,
        "blockwise_mib": memory["blockwise"] / 2**20,
        "memory": memory["blockwise"] / memory["dense"],
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
    rows = [measure(length, turns) for length in lengths]
    print("tokens   dense ms   blocks ms   ratio   dense MiB   blocks MiB   ratio")
    for row in rows:
        print(
            f"{row['length']:6} {row['dense_ms']:10.1f} {row['blockwise_ms']:11.1f} {row['time']:7.2f} "
            f"{row['dense_mib']:11.1f} {row['blockwise_mib']:12.1f} {row['memory']:7.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    slow = [row["length"] for row in rows if row["length"] >= 1024 and row["time"] > MOST_TIME]
    large = [row["length"] for row in rows if row["length"] >= 2048 and row["memory"] > MOST_MEMORY]
    if (slow and not options.tiny) or large:
        raise SystemExit(f"over the bars: time at {slow}, memory at {large} tokens")


if __name__ == "__main__":
    main()
