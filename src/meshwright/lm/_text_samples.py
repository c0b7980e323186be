"""`Generation`: the texts of a run's model, for the run's page, predictors and `meshwright sample`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.base._internal import PyTree, documented, explained_as
from meshwright.engine._internal import InformedWhen, check_types, is_informed
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import GREEDY, Decoding
from meshwright.lm._generation._generate import generate, length_for, stream
from meshwright.lm._generation._model import Model, check_tokens, prompt_vocabulary
from meshwright.lm._generation._text import tokenizer_of
from meshwright.processes._internal import When


@explained_as("lm.Generation")
@documented
@dataclass(frozen=True)
class Generation:
    """Generation by the model of a run: for `Experiment.samples`, `Trainer.fit(samples=)` and `Predictor`.

    With `prompts`, the texts of the model are shown on the run's page.

    Raises:
      UsageError: A field has a wrong type.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=256)
      >>> generation = mw.lm.Generation(mw.lm.with_cache(cfg), tokenizer=mw.lm.Bytes(), prompts=("Once",))
      >>> generation.when
      500
    """

    is_known_by_place: ClassVar[bool] = True

    model: Model
    """The model as `mw.lm.generate` takes it, such as `mw.lm.with_cache(cfg)`."""
    tokenizer: Any = None
    """An object with `encode` and `decode`, or the path of a `tokenizer.json` or of its directory. None for
    texts of numbers, the tokens themselves."""
    prompts: Sequence[str] = ()
    """The prompts whose continuations are written to `outputs/samples/step_00000100.jsonl` in the run
    directory and shown on its page. Their mean number of tokens is the score `samples/tokens`."""
    decoding: Decoding = GREEDY
    """Settings for the choice of tokens and for the end of a text."""
    when: int | When | InformedWhen = 500
    """The steps after which to generate, as in `Evaluation.when`; and after the last step."""

    def __post_init__(self) -> None:
        check_types(self)
        # This raises an error if `when` is not a policy.
        is_informed(self.when)
        if isinstance(self.prompts, str):
            raise UsageError(f"Generation.prompts is one text: give a list, [{self.prompts!r}].")

    @property
    def num_samples(self) -> int:
        """The number of prompts."""
        return len(self.prompts)

    @property
    def facts(self) -> dict[str, str]:
        """The facts that a file of predictions depends on."""
        return {"decoding": repr(self.decoding)}

    def check(self, params: PyTree) -> Sequence[str]:
        """Check that the prompts have tokens of the model; return the numbers of a sample to average."""
        vocabulary = prompt_vocabulary(self.model, params, self.decoding)
        for number, tokens in enumerate(self._encoded()):
            check_tokens(f"prompt {number}", tokens, vocabulary)
        return ("tokens",)

    def rows(self, params: PyTree, seed: int) -> list[dict[str, Any]]:
        """Return each prompt with the text after it. Collective."""
        encoded, decode = self._encoded(), tokenizer_of(self.tokenizer).decode
        texts = generate(self.model, params, encoded, self.decoding, seed=seed, slots=len(encoded))
        pairs = zip(self.prompts, texts, strict=True)
        return [{"prompt": prompt, "text": decode(row.tolist()), "tokens": len(row)} for prompt, row in pairs]

    def predictions(
        self, params: PyTree, examples: Any, *, slots: int, seed: int, start: int = 0
    ) -> Iterator[list[Any]]:
        """Yield a list of one text, or of one list of tokens, for each prompt from number `start` on.

        Rows that end before earlier ones are kept until those have ended. What a prompt gets depends neither
        on `start` nor on the other prompts.
        """
        tokenizer = tokenizer_of(self.tokenizer)
        prompts = [
            _tokens(tokenizer, number, example) for number, example in enumerate(_prompts_in(examples))
        ]
        # The length is that of all prompts, so that a resumed call computes the same.
        length = length_for(self.model, prompts, self.decoding)
        options = {"seed": seed, "length": length, "slots": slots, "first": start}
        rows: dict[int, list[int]] = {}
        ended: set[int] = set()
        for piece in stream(self.model, params, prompts[start:], self.decoding, **options):
            rows.setdefault(piece.number, []).extend(piece.tokens.tolist())
            if piece.is_last:
                ended.add(piece.number)
            while start in ended:
                tokens = rows.pop(start)
                yield [tokens if self.tokenizer is None else tokenizer.decode(tokens)]
                start += 1

    def _encoded(self) -> list[Any]:
        tokenizer = tokenizer_of(self.tokenizer)
        return [tokenizer.encode(prompt) for prompt in self.prompts]


def _prompts_in(examples: Any) -> Iterable[Any]:
    if isinstance(examples, Mapping):
        raise UsageError("a predictor that generates takes a list of texts or of sequences of tokens.")
    return examples() if callable(examples) else examples


def _tokens(tokenizer: Any, number: int, example: Any) -> Any:
    prompt = example.get("prompt") if isinstance(example, Mapping) else example
    if prompt is None:
        raise UsageError(
            f"example {number} has no prompt; it has {', '.join(map(str, example)) or 'nothing'}."
        )
    return list(tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
