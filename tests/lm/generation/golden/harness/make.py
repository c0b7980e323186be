"""Writes the scores that lm-evaluation-harness gives a small model by its backend for Hugging Face's models.

    python -m venv other
    other/bin/pip install torch==2.13.0 transformers==5.24.0 "lm_eval[hf]==0.4.13" ".[cpu]"
    other/bin/python tests/lm/generation/golden/harness/make.py

It needs an environment of its own, as the package and its tests need no PyTorch. The model is random, with
logits that are far apart; tokenizer and texts are made up here. Tasks are those of the harness itself, on
rows in their schemas. At its end it runs the same tasks by `mw.lm.lm_eval` in the same harness, and fails if
a score differs.
"""

import json
import os
import random
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import lm_eval
import numpy as np
import tokenizers
import torch
import transformers
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

HERE = Path(__file__).parent
MODEL = HERE / "model"
RANDOM = random.Random(0)
WHO = ["A sailor", "The baker", "My neighbour", "Anna", "A young fox", "The teacher"]
WHAT = [
    "carries a lamp",
    "opens the gate",
    "counts the boats",
    "waters the herbs",
    "reads a map",
    "cuts bread",
]
WHERE = [
    "near the river",
    "behind the mill",
    "on the old bridge",
    "in the kitchen",
    "under a tree",
    "at noon",
]
TASKS = {
    "hellaswag": "hellaswag/hellaswag",
    "arc_easy": "arc/arc_easy",
    "lambada_openai": "lambada/lambada_openai",
}


def sentence():
    return f"{RANDOM.choice(WHO)} {RANDOM.choice(WHAT)} {RANDOM.choice(WHERE)}"


def hellaswag():
    for i in range(12):
        ctx_a, ctx_b = sentence() + ".", RANDOM.choice(WHO).lower()
        endings = [f"{RANDOM.choice(WHAT)} {RANDOM.choice(WHERE)}." for _ in range(4)]
        endings[1] += " [step] Then  all go home. [title] The end."
        yield {
            "ind": i,
            "activity_label": "Daily work",
            "ctx_a": ctx_a,
            "ctx_b": ctx_b,
            "ctx": f"{ctx_a} {ctx_b}",
            "endings": endings,
            "source_id": f"made~{i}",
            "split": "val",
            "split_type": "indomain",
            "label": str(i % 4),
        }


def arc_easy():
    for i in range(12):
        labels = ["A", "B", "C", "D"][: 3 + i % 2] if i % 3 else ["1", "2", "3", "4"]
        texts = [RANDOM.choice(WHERE) for _ in labels]
        yield {
            "id": f"made_{i}",
            "question": f"{sentence()}. Where was it?",
            "choices": {"text": texts, "label": labels},
            "answerKey": labels[i % len(labels)],
        }


def lambada_openai():
    for _ in range(12):
        yield {"text": f"{sentence()}. {sentence()}, and then {sentence()}"}


def made_tokenizer():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    made.train_from_iterator([sentence() for _ in range(400)], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def made_model(vocabulary):
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.mul_(1.0 if "norm" in name else 12.0)
    return model


def task(name, rows):
    """Return the harness's own description of a task, with our rows."""
    path = Path(lm_eval.__file__).parent / f"tasks/{TASKS[name]}.yaml"

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    described = yaml.load(path.read_text(), Loader)
    if "process_docs" in described:
        from lm_eval.tasks.hellaswag import utils

        described["process_docs"] = utils.process_docs
    file = HERE / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = described.get("test_split") or described.get("validation_split")
    kept = {"training_split": None, "validation_split": None, "test_split": split}
    data = {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(file)}},
    }
    return {**described, **data, **kept, "tag": None}


def direct():
    """Requests of the three methods, with what is seldom in a task."""
    long = " ".join(sentence() + "." for _ in range(12))
    pairs = [
        ("", sentence()),
        (sentence() + "  ", "and more"),
        (long, " " + sentence()),
        ("<s>" + sentence(), "!"),
    ]
    texts = ["", "x", sentence(), long, long + long + "naïve 🙂"]
    until = [
        (sentence(), {"until": ["\n"], "max_gen_toks": 12}),
        (sentence(), {"until": [" "], "max_gen_toks": 20}),
        (long, {"until": [], "max_gen_toks": 24, "do_sample": False}),
        ("x", {"until": "e", "max_gen_toks": 20}),
    ]
    until += [(sentence(), {"until": [], "max_gen_toks": 8, "temperature": 0.0}) for _ in range(3)]
    until += [(sentence(), {"until": [], "max_gen_toks": 1}) for _ in range(24)]  # some are then greedy
    return pairs, texts, until


def asked(method, requests):
    kind = method.__name__
    instances = [
        Instance(kind, {}, request if isinstance(request, tuple) else (request,), i)
        for i, request in enumerate(requests)
    ]
    return method(instances)


def scores(model, tasks, requests):
    """Return all that a model of the harness gives."""
    found = lm_eval.simple_evaluate(model, tasks=tasks, log_samples=True, bootstrap_iters=0)
    answers = {}
    for name, samples in found["samples"].items():
        answers[name] = [
            {"args": list(pair), "found": [response[0][0], response[0][1]]}
            for sample in samples
            for pair, response in zip(
                [tuple(each.values()) for each in sample["arguments"].values()]
                if isinstance(sample["arguments"], dict)
                else sample["arguments"],
                sample["resps"],
                strict=True,
            )
        ]
    metrics = {
        name: {key: x for key, x in each.items() if isinstance(x, float) and "stderr" not in key}
        for name, each in found["results"].items()
    }
    pairs, texts, until = requests
    written = asked(model.generate_until, until)
    pairs = pairs + [(context, text) for (context, _), text in zip(until, written, strict=True) if text]
    return {
        "answers": answers,
        "metrics": metrics,
        "pairs": [
            {"args": a, "found": b} for a, b in zip(pairs, asked(model.loglikelihood, pairs), strict=True)
        ],
        "rolling": [
            {"args": [a], "found": b}
            for a, b in zip(texts, asked(model.loglikelihood_rolling, texts), strict=True)
        ],
        "written": [{"args": a, "found": b} for a, b in zip(until, written, strict=True)],
    }


def flat(value):
    if isinstance(value, dict):
        return [x for each in value.values() for x in flat(each)]
    if isinstance(value, list | tuple):
        return [x for each in value for x in flat(each)]
    return [value]


def compare(golden, found):
    numbers = texts = 0
    for one, other in zip(flat(golden), flat(found), strict=True):
        if isinstance(one, float):
            assert abs(one - other) < 1e-4 * max(1, abs(one)), (one, other)
            numbers += 1
        else:
            assert one == other, (one, other)
            texts += 1
    print(f"Meshwright's model has the same {numbers} numbers to 1e-4, and the same {texts} texts and flags")


def ours(tasks, requests):
    import meshwright as mw
    from meshwright.lm._models import decoder, hugging_face
    from meshwright.lm._models._with_cache import with_cache

    cfg = hugging_face.config(MODEL)
    import functools

    import jax

    target = jax.eval_shape(functools.partial(decoder.init, cfg), jax.random.key(0))
    params = mw.restore(hugging_face.open_model(MODEL), target)
    model = mw.lm.lm_eval(with_cache(cfg), params, MODEL, begin=0, end=1, length=96, max_new_tokens=24)
    found = scores(model, tasks, requests)
    by_name = mw.lm.task_scores(with_cache(cfg), MODEL, tasks, begin=0, end=1, length=96, max_new_tokens=24)(
        params
    )
    print(by_name)
    return found


def main():
    rows = {"hellaswag": hellaswag, "arc_easy": arc_easy, "lambada_openai": lambada_openai}
    tasks = [task(name, made()) for name, made in rows.items()]
    tokenizer = made_tokenizer()
    model = made_model(len(tokenizer))
    model.save_pretrained(MODEL)
    tokenizer.save_pretrained(MODEL)
    requests = direct()
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=96)
    golden = scores(theirs, tasks, requests)
    golden["packages"] = {p.__name__: p.__version__ for p in (torch, transformers, np)} | {
        "lm_eval": "0.4.13"
    }
    (HERE / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False))
    found = ours(tasks, requests)
    found["packages"] = golden["packages"]
    compare(golden, found)


if __name__ == "__main__":
    main()
