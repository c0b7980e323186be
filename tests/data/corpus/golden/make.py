"""Texts as `datasets` and WebDataset write them, and a check of objects of `datasets` and grain.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install datasets==5.2.0 webdataset grain tokenizers
    /tmp/peers/bin/python tests/data/corpus/golden/make.py

writes `saved`, by `save_to_disk`, and `shard-000000.tar.gz`, by `ShardWriter`, with the same texts.

    PYTHONPATH=src /tmp/peers/bin/python tests/data/corpus/golden/make.py check

tokenizes the texts of a `datasets.Dataset` and of a `MapDataset` of grain, given as objects.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import datasets

HERE = Path(__file__).parent
TEXTS = [f"text {i}\nécrit " + "word " * (i % 5) for i in range(20)]


def make():
    shutil.rmtree(HERE / "saved", ignore_errors=True)
    datasets.Dataset.from_dict({"id": range(20), "text": TEXTS}).save_to_disk(HERE / "saved", num_shards=2)
    import webdataset

    with webdataset.ShardWriter(f"{HERE}/shard-%06d.tar.gz", verbose=0, mtime=0) as writer:
        for i, text in enumerate(TEXTS):
            sample = {"json": {"text": text}} if i % 2 else {"txt": text}
            writer.write({"__key__": f"{i:06d}", "cls": i, **sample})


def check():
    import grain
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from meshwright.data._corpus._store import tokenized

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()

    class Rows:
        def __len__(self):
            return len(TEXTS)

        def __getitem__(self, number):
            return TEXTS[number]

    objects = {
        "datasets.Dataset": datasets.Dataset.from_dict({"id": range(20), "text": TEXTS}),
        "selected and mapped": datasets.Dataset.from_dict({"text": [f"-{x}" for x in TEXTS[::-1]]})
        .select(range(19, -1, -1))
        .map(lambda row: {"text": row["text"][1:]}),
        "grain": grain.MapDataset.source(Rows()).map(lambda text: {"text": text.encode()}),
    }
    for name, each in objects.items():
        with tempfile.TemporaryDirectory() as store:
            block = tokenized(each, bytewise, store=store).block(0)
            assert bytewise.decode(block.tokens.tolist()) == "".join(TEXTS), name
            print(name, json.dumps({"documents": len(block.lengths), "tokens": len(block.tokens)}))


if __name__ == "__main__":
    check() if sys.argv[1:] else make()
