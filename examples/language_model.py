"""A decoder that follows instructions. It learns from the answers alone, and generates in each evaluation.

    python language_model.py [WORKDIR [MESH]]
    python language_model_inference.py [WORKDIR]     # answers of the trained model, into a file
    python language_model_lora.py [WORKDIR]          # another task, by an adapter

The optimizer sees no prompts: labels that belong to a prompt have the weight 0.
"""

import sys

import numpy as np
import optax

import meshwright as mw
from meshwright.lm._models import decoder

END, LENGTH = 0, 64
CONFIG = decoder.Config(vocabulary=128, model=64, layers=2, heads=4, feed_forward=192)
SMALL = """zero one two three four five six seven eight nine ten
eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"""
ONES = SMALL.split()
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number):
    """Return a number below 1000 in words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")
    rest = f" {in_words(number % 100)}" if number % 100 else ""
    return f"{ONES[number // 100]} hundred{rest}"


def examples(numbers):
    to_words = [{"prompt": f"Write {n} in words:", "answer": in_words(n)} for n in numbers]
    to_digits = [{"prompt": f"Write {in_words(n)} in digits:", "answer": str(n)} for n in numbers]
    return to_words + to_digits


def collate(examples):
    """Return rows of prompt and answer, padded at their end, and the length of each part."""
    prompts = [list(example["prompt"].encode()) for example in examples]
    answers = [[*example.get("answer", "").encode(), END] for example in examples]
    rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    return {
        "tokens": np.array([row + [END] * (LENGTH - len(row)) for row in rows]),
        "prompt_length": np.array([len(prompt) for prompt in prompts]),
        "length": np.array([len(row) for row in rows]),
    }


def loss(params, batch):
    tokens, positions = batch["tokens"], np.arange(1, LENGTH)
    is_answer = (positions >= batch["prompt_length"][:, None]) & (positions < batch["length"][:, None])
    features = decoder.features(CONFIG, params, tokens[:, :-1])
    head = decoder.head(CONFIG, params)
    return mw.nn.cross_entropy(features, head, tokens[:, 1:], label_weights=is_answer)


def predict(params, batch):
    decoding = mw.lm.Decoding(max_new_tokens=40, stop=(END,))
    prompts, lengths = batch["tokens"], batch["prompt_length"]
    return mw.lm.generate_batch(MODEL, params, prompts, lengths, decoding)


def output(found):
    texts = [bytes(row[:length].tolist()) for row, length in zip(found.tokens, found.lengths, strict=True)]
    return [text.removesuffix(bytes([END])).decode(errors="replace") for text in texts]


def exact(examples, preds):
    return {
        "exact": np.mean([example["answer"] == pred for example, pred in zip(examples, preds, strict=True)])
    }


MODEL = mw.lm.with_cache(CONFIG)


def main(workdir="runs/language_model", mesh="data=-1"):
    deployer = mw.Deployer(seed=0, mesh=mesh, workdir=workdir)
    numbers = np.random.default_rng(0).permutation(1000)
    train, test = examples(numbers[:900].tolist()), examples(numbers[900:].tolist())
    params = decoder.init(CONFIG, deployer.gen_rng())
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, decay_steps=280))
    trainer = mw.Trainer(deployer, loss=loss, params=params, optimizer=optimizer, collate=collate)
    predictor = mw.Predictor(deployer, predict=predict, output=output, collate=collate)
    evaluations = {"test": mw.Evaluation("loss", test, when=140, predict=predictor, metric_fn=exact)}
    save = mw.Save(when=140)
    scores = trainer.fit(train, batch_size=64, epochs=10, evaluations=evaluations, save=save)
    print(f"exact {scores['test/exact']:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
