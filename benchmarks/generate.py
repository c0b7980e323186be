"""Time per generated token with a cache, beside computing the whole row again for each token.

Rows of 512 tokens, of which the last 496 are generated, in float32 with random weights. Both ways are one
compiled loop, and take turns. The time of computing again does not depend on the position, so only its first
32 tokens are made and timed, and compared with those of the cache. The bar: with a cache at least 20 × as
many tokens a second, at the median of the turns' ratios, for the small model in one row and for the larger
one in four. One row of the larger model is bound by reading its weights from memory, which computing again
shares between 512 positions.
"""

import argparse
import functools
import json
import statistics
import time
from pathlib import Path

import jax
import numpy as np

import meshwright as mw
from meshwright.lm._models import decoder
from meshwright.lm._models._with_cache import with_cache

LENGTH, PROMPT, AGAIN = 512, 16, 32
LEAST_RATIO = 20
SMALL = decoder.Config()
LARGER = decoder.Config(vocabulary=8192, model=384, layers=6, heads=6, feed_forward=1024)
CASES = {"0.9 M": (SMALL, 1), "14 M": (LARGER, 1), "14 M, 4 rows": (LARGER, 4)}
BARRED = ("0.9 M", "14 M, 4 rows")
TINY_CASES = {"tiny": (decoder.config("tiny"), 2)}


def timed(model, params, prompts, length, count):
    """Return so many tokens of each row, and how many tokens a second they were."""
    decoding, options = mw.lm.Decoding(max_new_tokens=count), {"length": length, "slots": len(prompts)}
    started = time.perf_counter()
    tokens = mw.lm.generate(model, params, prompts, decoding, **options)
    return tokens, len(prompts) * count / (time.perf_counter() - started)


def measure(cfg, num_rows, length, rounds):
    params = decoder.init(cfg, mw.training.key_of(0))
    prompts = list(np.random.default_rng(0).integers(0, cfg.vocabulary, (num_rows, PROMPT)))
    logits = functools.partial(decoder.logits, cfg)
    models = with_cache(cfg), mw.lm.without_cache(logits)
    rates = []
    for _ in range(1 + rounds):  # the first turn compiles
        cached, fast = timed(models[0], params, prompts, length, length - PROMPT)
        again, slow = timed(models[1], params, prompts, length, min(AGAIN, length - PROMPT))
        rates.append((fast, slow))
    same = all((a[: len(b)] == b).all() for a, b in zip(cached, again, strict=True))
    fast, slow = (statistics.median(side) for side in zip(*rates[1:], strict=True))
    ratio = statistics.median(a / b for a, b in rates[1:])
    return {"cached": fast, "again": slow, "ratio": ratio, "same": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    cases, length, rounds = (TINY_CASES, 32, 1) if options.tiny else (CASES, LENGTH, options.rounds)
    found = {}
    print(f"{jax.devices()[0].device_kind}, tokens per second")
    for name, (cfg, num_rows) in cases.items():
        found[name] = measure(cfg, num_rows, length, rounds)
        print(f"  {name:14}" + "  ".join(f"{key} {value:9.1f}" for key, value in found[name].items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if differ := [name for name in found if not found[name]["same"]]:
        raise SystemExit(f"other tokens than without a cache: {', '.join(differ)}")
    if under := [name for name in found if name in BARRED and found[name]["ratio"] < LEAST_RATIO]:
        raise SystemExit(f"under the bar: {', '.join(under)}")


if __name__ == "__main__":
    main()
