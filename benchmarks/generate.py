"""Time per generated token with a cache, beside computing the whole row again for each token.

Rows of 512 tokens, of which the last 496 are generated, in float32 with random weights. Both ways are one
compiled loop. The time of computing again does not depend on the position, so only its first 32 tokens are
made and timed, and compared with those of the cache. The bar: with a cache at least 20 × as many tokens a
second, for the small model in one row and for the larger one in four. One row of the larger model is bound by
reading its weights from memory, which computing again shares between 512 positions.
"""

import argparse
import functools
import json
import time
from pathlib import Path

import jax
import numpy as np

import meshwright as mw
from meshwright.models import decoder, with_cache

LENGTH, PROMPT, AGAIN = 512, 16, 32
LEAST_RATIO = 20
SMALL = decoder.Config()
LARGER = decoder.Config(vocabulary=8192, model=384, layers=6, heads=6, feed_forward=1024)
CASES = {"0.9 M": (SMALL, 1), "14 M": (LARGER, 1), "14 M, 4 rows": (LARGER, 4)}
BARRED = ("0.9 M", "14 M, 4 rows")


def timed(model, params, prompts, count):
    """Return the tokens of the second call, which compiles nothing, and its seconds."""
    decoding, options = mw.Decoding(max_new_tokens=count), {"length": LENGTH, "slots": len(prompts)}
    for _ in range(2):
        started = time.perf_counter()
        found = mw.generate(model, params, prompts, decoding, **options)
    return found, time.perf_counter() - started


def measure(cfg, num_rows):
    params = decoder.init(cfg, mw.train.key_of(0))
    prompts = list(np.random.default_rng(0).integers(0, cfg.vocabulary, (num_rows, PROMPT)))
    cached, fast = timed(with_cache(cfg), params, prompts, LENGTH - PROMPT)
    logits = functools.partial(decoder.logits, cfg)
    again, slow = timed(mw.generation.without_cache(logits), params, prompts, AGAIN)
    rates = num_rows * (LENGTH - PROMPT) / fast, num_rows * AGAIN / slow
    same = all((a[:AGAIN] == b).all() for a, b in zip(cached, again, strict=True))
    return {"cached": rates[0], "again": rates[1], "ratio": rates[0] / rates[1], "same": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE")
    options = parser.parse_args()
    found = {}
    print(f"{jax.devices()[0].device_kind}, tokens per second")
    for name, (cfg, num_rows) in CASES.items():
        found[name] = measure(cfg, num_rows)
        print(f"  {name:14}" + "  ".join(f"{key} {value:9.1f}" for key, value in found[name].items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if under := [name for name in BARRED if found[name]["ratio"] < LEAST_RATIO or not found[name]["same"]]:
        raise SystemExit(f"under the bar: {', '.join(under)}")


if __name__ == "__main__":
    main()
