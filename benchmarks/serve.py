"""A server of a small model under 64 clients at once: no request lost, and how long answers take.

A real process of `meshwright serve` with a decoder of 0.9 M parameters. Each client asks again as soon as it
is answered, half of them by events, and goes in the middle of every tenth of these. The bars: each request of
a client that stays is answered with the tokens that it asked for; the rows are free at the end; and 64
clients together get at least twice the tokens a second of one alone, as they share the rows.
With `--tiny` the last is not looked at.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import optax

import meshwright as mw
from meshwright.lm._models import decoder

CLIENTS, SECONDS = 64, 120
LEAST_GAIN = 2
FIELDS = {"prompt": "Once upon a time", "temperature": 0.8}


def experiment(workdir="run", layers=4):
    """A run of one step: what the model writes does not matter here."""
    cfg = decoder.Config(layers=layers)
    rows = {"tokens": np.ones((8, 32), np.int32)}
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(decoder.init, cfg),
        loss=functools.partial(decoder.loss, cfg),
        optimizer=optax.sgd(1e-3),
        input=mw.Input(rows, batch_size=8),
        max_steps=1,
        samples=mw.lm.Generation(mw.lm.with_cache(cfg), tokenizer=mw.lm.Bytes()),
    )


@contextlib.contextmanager
def serving(folder, *settings):
    """Yield the base URL of a server in a process of its own."""
    (Path(folder) / "serve_bench.py").write_text(Path(__file__).read_text())
    command, environ = [sys.executable, "-m", "meshwright"], {**os.environ, "JAX_PLATFORMS": "cpu"}
    quiet = {"cwd": folder, "env": environ, "stderr": subprocess.DEVNULL}
    subprocess.run([*command, "train", "serve_bench:experiment", *settings], check=True, **quiet)
    words = ["serve", "run", "--port", "0", "--length", "256"]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True, **quiet) as server:
        yield server.stdout.readline().split()[-1]
        server.send_signal(signal.SIGTERM)
    assert server.returncode == 0, "the server did not end by itself"


async def whole(client, tokens):
    """Ask for an answer at once; return the number of its tokens and its time to the first."""
    found = await client.post("completions", json={**FIELDS, "max_tokens": tokens})
    found.raise_for_status()
    return found.json()["usage"]["completion_tokens"], None


async def streamed(client, tokens, *, leaves):
    """Ask for an answer by events, and go in the middle of it if `leaves`."""
    began, first, count = time.perf_counter(), None, 0
    more = {"max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "completions", json={**FIELDS, **more}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            first = first or time.perf_counter() - began
            if leaves:
                return None, first
            if line.startswith("data: {") and (told := json.loads(line[6:]).get("usage")):
                count = told["completion_tokens"]
    return count, first


async def one_client(number, client, ends, found):
    draws, turns = random.Random(number), itertools.count()
    while not found or time.perf_counter() < ends:
        tokens, began = draws.randint(8, 64), time.perf_counter()
        try:
            if number % 2:
                count, first = await streamed(client, tokens, leaves=next(turns) % 10 == 9)
            else:
                count, first = await whole(client, tokens)
        except Exception as error:
            found.append({"lost": type(error).__name__})
            continue
        took, right = time.perf_counter() - began, count in (tokens, None)
        found.append({"seconds": took, "first": first, "tokens": count, "right": right})


async def load(url, clients, seconds):
    """Return what each request got."""
    found, options = (
        [[] for _ in range(clients)],
        {"limits": httpx.Limits(max_connections=None), "timeout": 300},
    )
    async with httpx.AsyncClient(base_url=url, **options) as client:
        ends = time.perf_counter() + seconds
        each = (one_client(number, client, ends, mine) for number, mine in enumerate(found))
        await asyncio.gather(*each)
    return [one for mine in found for one in mine]


def measured(found, seconds):
    answered = [each for each in found if each.get("tokens") is not None]
    took = [each["seconds"] for each in answered]
    first = [each["first"] for each in answered if each["first"] is not None]
    return {
        "requests": len(found),
        "answered": len(answered),
        "left": sum("right" in each and each["tokens"] is None for each in found),
        "lost": sum("lost" in each or not each.get("right") for each in found),
        "p50": float(np.percentile(took, 50)),
        "p95": float(np.percentile(took, 95)),
        "first p50": float(np.percentile(first, 50)) if first else None,
        "tokens a second": sum(each["tokens"] for each in answered) / seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    settings = ()
    if options.tiny:
        options.seconds, options.clients, settings = 1, 3, ("layers=1",)
    with tempfile.TemporaryDirectory() as folder, serving(folder, *settings) as url:
        alone_for = 0.5 if options.tiny else max(2.0, options.seconds / 10)
        asyncio.run(load(url, 1, 1))
        alone = measured(asyncio.run(load(url, 1, alone_for)), alone_for)
        together = measured(asyncio.run(load(url, options.clients, options.seconds)), options.seconds)
        time.sleep(1)
        health = httpx.get(f"{url.removesuffix('/v1')}/health").json()
    gain = together["tokens a second"] / alone["tokens a second"]
    found = {"alone": alone, "together": together, "gain": gain, "health": health}
    print(f"{options.clients} clients for {options.seconds:g} s")
    for name in ("alone", "together"):
        told = "  ".join(f"{key} {value:.4g}" for key, value in found[name].items() if value is not None)
        print(f"  {name:9} {told}")
    print(f"  gain      {gain:.2f} ×; at the end {health}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    assert together["lost"] == alone["lost"] == 0, "requests were lost"
    assert health["running"] == health["waiting"] == 0, "rows are not free"
    assert options.tiny or gain >= LEAST_GAIN, f"the gain is below {LEAST_GAIN}"


if __name__ == "__main__":
    main()
