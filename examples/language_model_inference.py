"""Answers of the model of `language_model.py`, for many prompts, into a file of JSON lines.

    python language_model.py && python language_model_inference.py [WORKDIR [FILE]]

If it is killed, the same command continues after the last answer that is in the file.
"""

import json
import sys
from pathlib import Path

import language_model as trained
import meshwright as mw


def main(workdir="runs/language_model", file="answers.jsonl"):
    deployer = mw.Deployer(seed=0)
    loaded, _ = deployer.load_ckpt(f"{workdir}/checkpoints", load_opt_state=False)
    predictor = mw.Predictor(
        deployer, predict=trained.predict, output=trained.output, collate=trained.collate
    )
    questions = [{"prompt": f"Write {number} in words:"} for number in range(1000)]
    predictor.predict(questions, 32, loaded["params"], to=file)
    answers = [json.loads(line) for line in Path(file).read_text().splitlines()]
    right = [answer == trained.in_words(number) for number, answer in enumerate(answers)]
    print(f"{answers[421]!r} {answers[999]!r}")
    print(f"exact {sum(right) / len(right):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
