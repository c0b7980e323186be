"""The evaluation of an experiment that writes texts.

outputs/generation/step_00000100.jsonl    a line for each prompt: {"prompt": "Once", "text": " upon a time"}
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base._internal import write_whole
from meshwright.checkpoints._internal import step_name
from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluation._interruption import BeforeBatch
from meshwright.engine._evaluation._means import Scores
from meshwright.engine._evaluation._scoring import Scoring
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._experiment._experiment import Experiment
from meshwright.engine._experiment._generation import Generation
from meshwright.errors import UsageError
from meshwright.lm._internal import check_tokens, generate, prompt_vocabulary, tokenizer_of
from meshwright.processes import _internal as processes
from meshwright.training._internal import ComputeDtype, eval_params, narrowing

NAME = "generation"
"""The name of this evaluation in reports and files."""


def generation_of(experiment: Experiment) -> list[EvaluationPart]:
    """Return the evaluation that writes texts, if the experiment has prompts."""
    given = experiment.generation
    if given is None or not given.prompts:
        return []
    if NAME in experiment.evaluations:
        raise UsageError(f"Experiment.generation has the name of evaluations.{NAME}: rename that evaluation.")
    return [generation_part(given, experiment.compute_dtype, experiment.seed)]


def generation_part(given: Generation, compute_dtype: ComputeDtype, seed: int) -> EvaluationPart:
    """Return the evaluation of a run that writes texts after the prompts of `given`."""
    with errors_naming(NAME):
        texts = _Texts(given, compute_dtype, seed)
    scoring = Scoring(
        texts.mean,
        lambda: iter((None,)),  # before it the run may interrupt this evaluation
        None,
        outputs=texts.write,
        num_examples=len(texts.prompts),
        check=texts.check,
    )
    return EvaluationPart(NAME, f"{NAME}/", NAME, given.when, scoring)


class _Texts:
    """The texts of the prompts. Those of the last call are kept until they are written."""

    def __init__(self, given: Generation, compute_dtype: ComputeDtype, seed: int):
        self.prompts, self._given, self._seed = list(given.prompts), given, seed
        self._narrow, self._tokenizer = narrowing(compute_dtype), tokenizer_of(given.tokenizer)
        self._encoded = [self._tokenizer.encode(prompt) for prompt in self.prompts]
        self._rows: Sequence[np.ndarray] = ()

    def check(self, target: Any) -> Sequence[str]:
        """Check that prompts have tokens of the model, and return the name of the score."""
        with errors_naming(NAME):
            vocabulary = prompt_vocabulary(self._given.model, target.params, self._given.decoding)
            for number, tokens in enumerate(self._encoded):
                check_tokens(f"prompt {number}", tokens, vocabulary)
        return ("tokens",)

    def mean(self, state: Any, batches: Iterable[Any]) -> Scores:
        """Generate, and return the mean number of tokens of a text. Collective."""
        for _ in batches:
            pass
        params = self._narrow(eval_params(state))
        options = {"seed": self._seed, "slots": len(self._encoded)}
        self._rows = generate(self._given.model, params, self._encoded, self._given.decoding, **options)
        return {"tokens": float(np.mean([len(row) for row in self._rows]))}

    def write(self, directory: Path, step: int, state: Any, before_batch: BeforeBatch) -> None:
        """Write the texts of the call before."""
        texts = [self._tokenizer.decode(row.tolist()) for row in self._rows]
        pairs = zip(self.prompts, texts, strict=True)
        lines = [json.dumps({"prompt": prompt, "text": text}) + "\n" for prompt, text in pairs]
        if processes.is_lead():
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / f"{step_name(step)}.jsonl", "".join(lines).encode())
