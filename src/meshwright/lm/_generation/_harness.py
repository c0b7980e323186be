"""`lm_eval`: a model of EleutherAI's lm-evaluation-harness, over `score` and `generate`."""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.base._internal import PyTree, import_extra
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import Decoding
from meshwright.lm._generation._generate import generate
from meshwright.lm._generation._model import Model
from meshwright.lm._generation._score import score
from meshwright.lm._generation._text import encode_plain, stop_sequences, tokenizer_of

_BOUNDS = ("top_k", "top_p", "min_p")
_MAX_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


def lm_eval(
    model: Model,
    params: PyTree,
    tokenizer: Any,
    *,
    begin: int | None = None,
    end: int | None = None,
    length: int | None = None,
    max_new_tokens: int = 256,
    batch_size: int = 8,
    seed: int = 0,
) -> Any:
    """Return a model for lm-evaluation-harness: `lm_eval.simple_evaluate(mw.lm.lm_eval(...), tasks=[...])`.

    It is a `lm_eval.api.model.LM`. Texts become tokens, and long ones are cut, as its backend for Hugging
    Face's models does it, so tasks have the same scores. It computes on the mesh that the parameters are on.
    With several processes, all call the harness with the same tasks.

    Args:
      model: The model, as in `mw.lm.generate`.
      params: Its parameters, where they are: during training those of the training mesh.
      tokenizer: What `mw.lm.tokenizer_of` takes.
      begin: The token before a text that has nothing before it. None stands for the tokenizer's
        `bos_token_id` or, without one, `end`.
      end: The token that ends texts. None stands for the tokenizer's `eos_token_id`.
      length: The largest number of tokens that the model reads at a time; of longer texts the beginning is
        left out. None stands for the model's number of positions or, without one, 2048.
      max_new_tokens: The largest number of tokens to generate, if a task does not say it.
      batch_size: The number of rows that are computed together.
      seed: The seed of draws, for tasks that draw.

    Raises:
      UsageError: lm-evaluation-harness is not installed, or no token is known to begin texts with.

    Example:
      >>> harness = mw.lm.lm_eval(model, params, "llama/tokenizer.json", begin=1, end=2)  # doctest: +SKIP
      >>> lm_eval.simple_evaluate(harness, tasks=["hellaswag"])["results"]  # doctest: +SKIP
      {'hellaswag': {'acc,none': 0.57, ...}}
    """
    base = import_extra("lm_eval.api.model", extra="lm-eval", needed_by="mw.lm.lm_eval").LM

    class MeshwrightLM(Harness, base):
        def __init__(self, *arguments: Any, **options: Any):
            base.__init__(self)
            Harness.__init__(self, *arguments, **options)

    sizes = {"length": length, "max_new_tokens": max_new_tokens, "batch_size": batch_size, "seed": seed}
    return MeshwrightLM(model, params, tokenizer, begin=begin, end=end, **sizes)


def task_scores(
    model: Model,
    tokenizer: Any,
    tasks: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Callable[[PyTree], dict[str, float]]:
    """Return a function from parameters to the scores of tasks of lm-evaluation-harness, to use in training.

    The scores have names such as `hellaswag/acc_norm`. Standard errors are left out.

    Args:
      model: As in `lm_eval`.
      tokenizer: As in `lm_eval`.
      tasks: The tasks, as in `lm_eval.simple_evaluate`: their names or their descriptions.
      options: Further arguments of `lm_eval.simple_evaluate`, such as `limit` and `num_fewshot`.
      more: Further arguments of `mw.lm.lm_eval`, such as `batch_size`.

    Example:
      >>> scores = mw.lm.task_scores(model, "llama", ["hellaswag"], options={"limit": 100})  # doctest: +SKIP
      >>> evaluations = {"tasks": mw.engine.EvaluationFunction(scores, when=1000)}  # doctest: +SKIP
    """

    def scores(params: PyTree) -> dict[str, float]:
        harness = lm_eval(model, params, tokenizer, **more)
        evaluate = importlib.import_module("lm_eval").simple_evaluate
        settings = {"bootstrap_iters": 0, "log_samples": False, **(options or {})}
        return _numbers(evaluate(harness, tasks=list(tasks), **settings)["results"])

    return scores


def _numbers(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the scores of tasks. The harness names them `acc,none`, where `none` stands for no filter."""
    scores = {}
    for task, metrics in results.items():
        for name, value in metrics.items():
            metric, _, filter_name = name.partition(",")
            if isinstance(value, int | float) and filter_name and not metric.endswith("_stderr"):
                scores[f"{task}/{metric}" + ("" if filter_name == "none" else f"/{filter_name}")] = float(
                    value
                )
    return scores


class Harness:
    """The three methods of a model of the harness. The arguments are those of `lm_eval`.

    Requests are objects with a tuple `args`. The tokens of a context and a continuation, and the tokens that
    are left out of long texts, are as in `lm_eval.models.huggingface.HFLM` of version 0.4.13.
    """

    def __init__(
        self,
        model: Model,
        params: PyTree,
        tokenizer: Any,
        *,
        begin: int | None = None,
        end: int | None = None,
        length: int | None = None,
        max_new_tokens: int = 256,
        batch_size: int = 8,
        seed: int = 0,
    ):
        self._model, self._params, self._texts = model, params, _Texts(tokenizer, begin, end)
        self._length = length or model.positions or 2048
        self._max_new_tokens, self._batch_size, self._seed = max_new_tokens, batch_size, seed

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation after its context, and whether it is greedy."""
        return self._scored([self._pair(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Return the log-likelihood of each whole text. A long one is cut into windows."""
        windows = [self._windows(self._texts.encode(request.args[0])) for request in requests]
        scores = iter(self._scored([pair for pairs in windows for pair in pairs]))
        return [sum((next(scores)[0] for _ in pairs), 0.0) for pairs in windows]

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Return the text of the model after each context, up to a text that ends the answer."""
        # Requests with equal settings are generated together.
        alike: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        texts: dict[int, str] = {}
        for settings, numbers in alike.items():
            contexts = [requests[number].args[0] for number in numbers]
            texts |= zip(numbers, self._generated_texts(contexts, json.loads(settings)), strict=True)
        return [texts[number] for number in range(len(requests))]

    def _scored(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        if not pairs:
            return []
        shortened = [self._without_long_context(*pair) for pair in pairs]
        prompts, rows = zip(*shortened, strict=True)
        scored = score(self._model, self._params, rows, prompts, batch_size=self._batch_size)
        return [(row.log_likelihood, row.is_greedy) for row in scored]

    def _without_long_context(
        self, context: list[int], continuation: list[int]
    ) -> tuple[list[int], list[int]]:
        """Return a pair without the first tokens of a context that is too long."""
        if len(continuation) > self._length:
            raise UsageError(
                f"a continuation has {len(continuation)} tokens; the model reads {self._length} at a time."
            )
        limit = self._length if self._model.encode else self._length + 1 - len(continuation)
        return context[-limit:], continuation

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if not context:
            tokens, begin = encode_plain(self._texts.tokenizer, continuation), self._texts.begin
            return (tokens[:1], tokens[1:]) if tokens[:1] == [begin] else ([begin], tokens)
        # Tokens begin with their space, so the space at the end of a context belongs to what follows.
        bare = context.rstrip()
        continuation, context = context[len(bare) :] + continuation, bare
        context_tokens = self._texts.encode(context)
        if self._model.encode is not None:
            return context_tokens, encode_plain(self._texts.tokenizer, continuation)
        return context_tokens, self._texts.encode(context + continuation)[len(context_tokens) :]

    def _windows(self, tokens: list[int]) -> list[tuple[list[int], list[int]]]:
        """Return pairs that hold each token once, with all context that there is room for."""
        length, pairs = self._length, list[tuple[list[int], list[int]]]()
        for start in range(0, len(tokens), length):
            end = min(start + length, len(tokens))
            first = max(end - length - 1, 0)
            context = tokens[first:start] if start else [self._texts.begin]
            pairs.append((context, tokens[start:end]))
        return pairs

    def _generated_texts(self, contexts: Sequence[str], settings: dict[str, Any]) -> list[str]:
        decoding, stop = self._decoding(settings)
        limit = self._length - (0 if self._model.encode else decoding.max_new_tokens)
        if limit < 1:
            raise UsageError(
                f"a task asks for {decoding.max_new_tokens} new tokens; the model has {self._length} "
                "positions."
            )
        prompts = [self._texts.encode(context)[-limit:] or [self._texts.begin] for context in contexts]
        options = {"seed": self._seed, "slots": self._batch_size}
        rows = generate(self._model, self._params, prompts, decoding, **options)
        texts = [self._texts.decode(row.tolist()) for row in rows]
        return [_cut_at_stop(text, stop) for text in texts]

    def _decoding(self, settings: dict[str, Any]) -> tuple[Decoding, list[str]]:
        """Return the decoding of a task, and the texts that end an answer."""
        until = settings.pop("until", None) or []
        stop = [until] if isinstance(until, str) else list(until)
        max_new_tokens = [settings.pop(name) for name in _MAX_NEW_TOKENS if name in settings]
        fields: dict[str, Any] = {
            "max_new_tokens": max_new_tokens[0] if max_new_tokens else self._max_new_tokens
        }
        temperature = settings.pop("temperature", None)
        bounds = {name: settings.pop(name) for name in _BOUNDS if name in settings}
        if settings.pop("do_sample", bool(temperature)):
            fields |= {"temperature": 1.0 if temperature is None else temperature, **bounds}
        names = {"num_beams": "beams", "repetition_penalty": "repetition_penalty"}
        fields |= {ours: settings.pop(theirs) for theirs, ours in names.items() if theirs in settings}
        if settings:
            raise UsageError(
                f"a task generates with {', '.join(sorted(settings))}, which mw.lm.lm_eval does not know.\n"
                "  It knows until, do_sample, temperature, "
                f"{', '.join((*names, *_BOUNDS, *_MAX_NEW_TOKENS))}."
            )
        is_end = [] if self._texts.end is None else [(self._texts.end,)]
        # Rows end early at stop sequences of tokens. A text may come in other tokens, so texts are cut,
        # too.
        early = stop_sequences(self._texts.tokenizer, stop)
        return Decoding(**fields, stop=tuple(dict.fromkeys((*is_end, *early)))), stop


def _cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first of the texts that end it."""
    for end in filter(None, stop):
        text = text.split(end)[0]
    return text


class _Texts:
    """The tokenizer, with or without the special tokens that it puts around texts."""

    def __init__(self, tokenizer: Any, begin: int | None, end: int | None):
        self.tokenizer = tokenizer_of(tokenizer)
        self.end = getattr(tokenizer, "eos_token_id", None) if end is None else end
        first_token = getattr(tokenizer, "bos_token_id", None) if begin is None else begin
        first_token = self.end if first_token is None else first_token
        if first_token is None:
            raise UsageError(
                "the tokenizer does not say which token begins a text: give begin=, or end= if that token "
                "also begins texts."
            )
        self.begin: int = first_token
        self._begin_text = self._text_of(first_token)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with special tokens if the tokenizer adds some."""
        if self._begin_text and text.startswith(self._begin_text):
            return encode_plain(self.tokenizer, text)
        return list(self.tokenizer.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without special tokens."""
        bare_tokens = [token for token in tokens if token != self.end]
        has_choice = "skip_special_tokens" in inspect.signature(self.tokenizer.decode).parameters
        return self.tokenizer.decode(bare_tokens, **({"skip_special_tokens": True} if has_choice else {}))

    def _text_of(self, token: int) -> str:
        inner: Any = getattr(self.tokenizer, "inner", None)
        if inner is not None:
            return inner.id_to_token(token) or ""
        return self.tokenizer.decode([token])
