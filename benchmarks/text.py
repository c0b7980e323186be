"""Texts: tokenizing beside `tokenizers` alone, packing, the first batch, and what a batch takes.

The texts are the sources of Python's library, over and over, and a tokenizer that is trained on them. Times
are of CPU, as the machine may do other work, but for the seconds until the first batch. The bars: tokenizing
takes at most 1.2 × the CPU, and rows are 99 % filled; seconds and microseconds are told. With `--peer`, an
environment with `datasets` and `trl`, which is not that of `make bench`, does the same by turns:
`datasets.map` on one process tokenizes, and TRL's `pack_dataset` packs by best fit without losing tokens.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 trl==1.16.0
    .venv/bin/python benchmarks/text.py --rounds 5 --peer /tmp/peers/bin/python
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

import meshwright as mw
from meshwright.data._corpus._store import tokenized

MAX_TOKENIZING, MIN_FILL = 1.2, 0.99
TINY_FILES, TINY_FILL = 60, 0.95


def children_seconds() -> float:
    """Return the CPU time of processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_texts(directory: Path, megabytes: int, most: int | None = None) -> tuple[Path, list[str]]:
    """Write texts, of so many files at most, and a tokenizer for them; return their file and the texts."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:most]
    texts = [path.read_text(errors="replace")[:20_000] for path in paths]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(texts[:100], trainers.BpeTrainer(vocab_size=4096, show_progress=False))
    tokenizer.save(str(directory / "tokenizer.json"))
    times = -(-megabytes * 1_000_000 // sum(map(len, texts)))
    texts = texts * times
    file = directory / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file, texts


def alone(directory: Path) -> float:
    """Return the CPU time of a program that reads the texts and tokenizes them with `tokenizers`."""
    program = (
        "import json, sys, tokenizers\n"
        "made = tokenizers.Tokenizer.from_file(sys.argv[2])\n"
        "texts = [json.loads(line)['text'] for line in open(sys.argv[1])]\n"
        "print(sum(len(x.ids) for x in made.encode_batch_fast(texts, add_special_tokens=False)))\n"
    )
    return _seconds([sys.executable, "-c", program, *_paths(directory)])


PEER = """
import json, sys, time
import datasets, tokenizers
from trl.data_utils import pack_dataset
started = time.perf_counter(), time.process_time()
made = tokenizers.Tokenizer.from_file(sys.argv[2])
encode = lambda some: {"input_ids": [x.ids for x in made.encode_batch_fast(some["text"])]}
data = datasets.load_dataset("json", data_files=sys.argv[1], split="train")
data = data.map(encode, batched=True, remove_columns=["text"], load_from_cache_file=False)
tokenized = time.process_time()
rows = pack_dataset(data, 1024, "bfd_split", {"load_from_cache_file": False})
packed = time.process_time()
rows[:64]
first = time.perf_counter()
tokens = sum(map(len, data["input_ids"]))
print(json.dumps({
    "tokenizing": tokenized - started[1], "packing": packed - tokenized, "first": first - started[0],
    "filled": tokens / (1024 * len(rows)), "lost": tokens - sum(map(len, rows["input_ids"])),
}))
"""


def by_peer(python: str, directory: Path) -> dict[str, float]:
    """Return what `datasets.map` and TRL's `pack_dataset` took; their imports are not counted."""
    environment = {**os.environ, "HF_HOME": str(directory / "hf"), "HF_DATASETS_OFFLINE": "1"}
    command = [python, "-c", PEER, *_paths(directory)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    return json.loads(done.stdout.splitlines()[-1])


def packing(directory: Path, store: Path) -> float:
    """Return the CPU time of packing all tokens of a store, which are there, into rows."""
    for path in store.glob("*/*.rows*"):
        path.unlink()
    rows = mw.data.text(
        directory / "texts.jsonl", tokenizer=directory / "tokenizer.json", length=1024, store=store
    ).rows
    started = time.process_time()
    ends, _ = rows.ends(np.inf)
    seconds = time.process_time() - started
    if not ends[-1]:
        raise SystemExit("there are no rows")
    return seconds


def _paths(directory: Path) -> list[str]:
    return [str(directory / "texts.jsonl"), str(directory / "tokenizer.json")]


def _seconds(command: list[str], **options: object) -> float:
    before = children_seconds()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    return children_seconds() - before


def ours(directory: Path, store: Path) -> float:
    """Return the CPU time of the process that tokenizes, with the writing of the store."""
    before = children_seconds()
    made = tokenized(directory / "texts.jsonl", directory / "tokenizer.json", store=store)
    made.wait_for(1 << 30)
    made.close()
    return children_seconds() - before


def first_batch(directory: Path, store: Path) -> tuple[float, float]:
    """Return the seconds until the first batch of 64 rows of 1,024 tokens, and the CPU time until then.

    Nothing is tokenized before. The CPU time is also of what goes on meanwhile.
    """
    sharding = mw.Layout(mw.make_mesh("data=1", jax.devices()[:1])).batch_sharding
    started, cpu = time.perf_counter(), time.process_time() + children_seconds()
    rows = mw.data.text(
        directory / "texts.jsonl", tokenizer=directory / "tokenizer.json", length=1024, store=store
    )
    with mw.batches(rows, 64, sharding) as data:
        next(data)
        seconds = time.perf_counter() - started
    rows.rows.close()
    return seconds, time.process_time() + children_seconds() - cpu


def of_batches(directory: Path, store: Path) -> tuple[float, float]:
    """Return the main thread's CPU time of a batch in microseconds, and the share of filled places."""
    sharding = mw.Layout(mw.make_mesh("data=1", jax.devices()[:1])).batch_sharding
    rows = mw.data.text(
        directory / "texts.jsonl", tokenizer=directory / "tokenizer.json", length=1024, store=store
    )
    filled, times = [], []
    with mw.batches(rows, 64, sharding, epochs=1) as data:
        while True:
            time.sleep(0.02)  # as a step: what threads read ahead is there
            started = time.thread_time()
            batch = next(data, None)
            times.append(time.thread_time() - started)
            if batch is None:
                return 1e6 * float(np.median(times)), float(np.mean(filled))
            filled.append((batch["segments"] > 0).mean())


def told(
    peers: list[dict[str, float]],
    firsts: list[tuple[float, float]],
    packings: list[float],
    ratios: list[float],
) -> None:
    """Print ours beside the peer's, and the medians of the ratios within a round."""
    sides = {
        "tokenizing, × tokenizers alone": (ratios, [each["tokenizing"] for each in peers]),
        "packing, ms of CPU": ([1e3 * x for x in packings], [1e3 * each["packing"] for each in peers]),
        "first batch, s": ([seconds for seconds, _ in firsts], [each["first"] for each in peers]),
    }
    for name, (mine, theirs) in sides.items():
        pairs = list(zip(mine, theirs, strict=True))
        shown = ", ".join(f"{a:.2f} / {b:.2f}" for a, b in pairs)
        ratio = np.median([a / b for a, b in pairs])
        print(f"{name}: ours / datasets and TRL {shown}; median ratio {ratio:.3f}")
    print(f"TRL's rows: filled {peers[0]['filled']:.2%}, {peers[0]['lost']:.0f} tokens lost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="the Python of an environment with datasets and trl")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.tiny:
        options.megabytes, options.rounds = 1, 1
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        write_texts(directory, options.megabytes, TINY_FILES if options.tiny else None)
        firsts, ratios, packings, peers = [], [], [], []
        for i in range(options.rounds):
            store = directory / f"store{i}"
            firsts.append(first_batch(directory, directory / f"first{i}"))
            base = alone(directory)
            ratios.append(ours(directory, store) / base)
            packings.append(packing(directory, store))
            if options.peer:
                found = by_peer(options.peer, directory)
                peers.append({**found, "tokenizing": found["tokenizing"] / base})
        microseconds, fill = of_batches(directory, directory / "store0")
    ratio, (first, cpu) = min(ratios), min(firsts)
    print(f"tokenizing: {ratio:.2f} × the CPU of tokenizers alone, at most {MAX_TOKENIZING}")
    if peers:
        told(peers, firsts, packings, ratios)
    print(f"first batch: {first:.2f} s (CPU: {cpu:.2f} s)")
    print(f"a batch of 64 rows: {microseconds:.0f} µs of the main thread")
    print(f"filled: {fill:.2%}, at least {MIN_FILL:.0%}")
    if fill < (TINY_FILL if options.tiny else MIN_FILL) or (ratio > MAX_TOKENIZING and not options.tiny):
        raise SystemExit("missed")


if __name__ == "__main__":
    main()
