"""The pages for those who come from other systems: what they name is there, and what they deny is not."""

import argparse
import ast
import functools
import inspect
import re
from pathlib import Path

import jax
import optax
import pytest

import meshwright as mw
from meshwright.cli._commands import grammar
from meshwright.lm._models import hugging_face
from test_words import DOORS

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("coming-from-*.md"))
FIELDS = {
    "input": mw.Input,
    "save": mw.Save,
    "logging": mw.Logging,
    "profile": mw.Profile,
    "compile": mw.Compile,
    "stop": mw.Stop,
    "watchdog": mw.Watchdog,
}
"""The fields of an experiment that are values with fields of their own."""
ROOTS = FIELDS | {
    "mw": mw,
    "jax": jax,
    "optax": optax,
    "P": jax.P,
    "trainer": mw.Trainer,
    "deployer": mw.Deployer,
    "checkpoints": mw.Checkpoints,
    "predictor": mw.Predictor,
    "source": mw.checkpoints._internal.Opened,
    "decoder": mw.lm.decoder,
    "gpt2": mw.lm.gpt2,
    "hugging_face": hugging_face,
}
"""What the first words of dotted names stand for."""
MODULES = [mw, *(getattr(mw, door) for door in DOORS if door != "errors")]
CLASSES = {
    name: value
    for module in MODULES
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name))
}
OF_THE_USER = {"loss", "predict", "measure", "model", "experiment", "unfreeze", "f", "step", "metric_fn"}
"""Functions of the user, and values, that cells call."""
QUOTED = {"remap", "ckpt_path", "padding"}
"""Arguments of the other system that a cell of ours quotes."""


FIELD = object()
"""A value that instances of a class have, which is not looked into."""


class MissingError(Exception):
    """There is no such thing."""


def public_functions():
    """Yield the public functions and classes of all doors and the methods of these classes, by name."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                yield name, value
            if inspect.isclass(value):
                yield from (
                    (each, f) for each, f in inspect.getmembers(value, inspect.isfunction) if each[0] != "_"
                )


@functools.cache
def functions():
    by_name = {}
    for name, function in public_functions():
        by_name.setdefault(name, []).append(function)
    return by_name


def signature_of(function):
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


@functools.cache
def arguments():
    """Return the names of all arguments of public functions."""
    signatures = [signature_of(each) for named in functions().values() for each in named]
    return {name for each in signatures if each is not None for name in each.parameters}


def attribute(of, name):
    """Return an attribute of a module, or of a class as its instances have it."""
    if hasattr(of, name):
        return getattr(of, name)
    if inspect.isclass(of):
        names = {each for base in of.__mro__ for each in getattr(base, "__annotations__", {})}
        signature = signature_of(of)
        is_set = re.search(rf"self\.{name}\b", inspect.getsource(of))
        if name in names or (signature and name in signature.parameters) or is_set:
            return FIELD
    raise MissingError(f"{getattr(of, '__name__', of)} has no {name!r}")


def resolved(node):
    """Return what a dotted name stands for; None if that is not known."""
    if isinstance(node, ast.Name):
        return ROOTS.get(node.id, CLASSES.get(node.id))
    if isinstance(node, ast.Attribute):
        of = resolved(node.value)
        return (
            None
            if of is None or not (inspect.ismodule(of) or inspect.isclass(of))
            else attribute(of, node.attr)
        )
    return None


def check_call(function, node, is_method):
    """Check that a function takes the arguments of a call."""
    if not callable(function):
        raise MissingError(f"{ast.unparse(node.func)} cannot be called")
    signature = signature_of(function)
    if signature is None or any(isinstance(each, ast.Starred) for each in node.args):
        return
    given = [each for each in node.args if not (isinstance(each, ast.Constant) and each.value is ...)]
    keywords = {each.arg: each for each in node.keywords if each.arg}
    try:
        signature.bind_partial(*([None] * is_method), *given, **keywords)
    except TypeError as error:
        raise MissingError(f"{ast.unparse(node.func)}: {error}") from None


def check_code(code):
    """Check all that a piece of Python names."""
    text = re.sub(r"=(?=\s*[,)])", "=...", code.replace("…", "..."))
    if keyword := re.fullmatch(r"((?:\w+\.)*\w+)=(.*)", text):
        *path, name = keyword[1].split(".")
        if path:
            of = ROOTS.get(path[0]) or CLASSES.get(path[0])
            if of is None:
                raise MissingError(f"there is no {path[0]!r}")
            functools.reduce(attribute, [*path[1:], name], of)
        elif not name.isupper() and name not in arguments() | QUOTED:
            raise MissingError(f"no function has an argument {name!r}")
        if name == "adapt":
            check_adapt(keyword[2])
        text = keyword[2] or "..."
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolved(node)
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id not in {*CLASSES, "P"}:
            if node.func.id in OF_THE_USER:
                continue
            if node.func.id not in functions():
                raise MissingError(f"there is no function {node.func.id!r}")
            check_any(functions()[node.func.id], node)
        elif (function := resolved(node.func)) is not None:
            root = next(each for each in ast.walk(node.func) if isinstance(each, ast.Name))
            check_call(function, node, inspect.isfunction(function) and inspect.isclass(ROOTS.get(root.id)))


def check_adapt(code):
    """Check that what adapts saved arrays takes two: the saved one and what it is to be."""
    for _, adapt in eval(code, {"mw": mw}):
        try:
            inspect.signature(adapt).bind(None, None)
        except TypeError as error:
            raise MissingError(f"{adapt}: {error}") from None


def check_any(named, node):
    """Check that one of the functions of a name takes the arguments of a call."""
    errors = []
    for each in named:
        is_method = "self" in (getattr(signature_of(each), "parameters", {}))
        try:
            return check_call(each, node, is_method)
        except MissingError as error:
            errors.append(error)
    raise errors[0]


def commands():
    """Return the flags of each command, `launch slurm` too, by its words."""
    found = {}

    def add(parser, words):
        found[words] = {option for action in parser._actions for option in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    add(command, (*words, name))

    add(grammar().top, ())
    return found


def check_command(code):
    known, words = commands(), code.split()[1:]
    path = ()
    while words and (*path, words[0]) in known:
        path, words = (*path, words[0]), words[1:]
    if not path and words and re.fullmatch(r"[a-z-]+", words[0]):
        raise MissingError(f"there is no command {words[0]!r}")
    for word in words:
        if word == "--":
            return
        if word.startswith("--") and word not in known[path] | known[()]:
            raise MissingError(f"{' '.join(path)} has no {word}")


def cells(page):
    """Yield the cells of ours of all tables of a page: all but the first column."""
    for line in page.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| |"):
            theirs, *ours = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            yield theirs, ours


def problems(page):
    for theirs, ours in cells(page):
        for code in re.findall(r"`([^`]+)`", " ".join(ours)):
            try:
                if re.fullmatch(r"[\w/.-]+\.(py|txt|json|gz)(::\w+)?", code):
                    continue
                if code.startswith("meshwright "):
                    check_command(code)
                elif code.startswith("--"):
                    if not any(code.split()[0].split("=")[0] in flags for flags in commands().values()):
                        raise MissingError("no command has this option")
                else:
                    check_code(code)
            except MissingError as missing:
                yield f"{theirs}: `{code}`: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_tables_name_is_there_and_takes_the_arguments_that_they_write(page):
    assert not list(problems(page))


DENIES = re.compile(r"(?!not needed)(–$|(no|not|none)\b)|.*\bnot there\b")
LEFT_OUT = re.compile(r"(?:## Left out\n\n|\*\*Left out\*\*:? ?\|? ?)((?:.+\n)+)")


def denials(page):
    """Yield what a page says that there is not: the first cell of a row, or what is left out."""
    for theirs, ours in cells(page):
        if not theirs.startswith("**") and DENIES.match(ours[0]):
            yield theirs
    for listed in LEFT_OUT.findall(page.read_text()):
        text = re.sub(r"\([^)]*\)", "", listed).replace("\n", " ")
        separator = ";" if ";" in text else ","
        yield from (re.sub(r"\s+", " ", each).strip(" .|") for each in text.split(separator))


DENIED = {
    "axlearn": {
        "`_opt_params`": "opt_params",
        "checkpoint events": "checkpoint_event",
        "the fault-tolerance agent": "fault_tol|agent",
        "elastic input over slices": "elastic|slice_input",
        "silent-data-corruption checks": "sdc|corruption",
        "flag tables": "absl|flag_table",
        "Pathways": "pathways",
    },
    "flax": {
        "`dynamic_scale.DynamicScale` (float16)": "dynamic_scale|loss_scal",
        "Dynamic loss scaling": "dynamic_scale|loss_scal",
        "TensorFlow's data pipelines themselves": "tf_data|tfds",
        "`nnx.Optimizer` and `nnx.metrics` as objects": "MultiMetric",
    },
    "hugging-face": {
        "`fp16`": "fp16|loss_scal",
        "`hyperparameter_search`": "hyper|sweep",
        "Training of PyTorch modules": "torch",
        "the Hub": "push_to|hub",
        "a search over settings": "hyper|sweep",
        "pipelines": "text_classification|zero_shot",
    },
    "keras": {
        "other callbacks": "callback",
        "Layers and preprocessing layers": "conv2d|preprocess",
        "losses and metrics by name": "accuracy|auc|mean_squared",
        "callbacks as classes": "callback",
        "`.keras` and `.h5` files": "keras|h5",
        "changing the learning rate from the outside during a run": "set_learning_rate",
    },
    "levanter": {
        "Named axes": "named_(axes|array|jit)",
        "distillation and speech as ready programs": "distil|speech|whisper",
        "machines of a cloud, which are rented elsewhere": "sky|cluster_up|provision",
        "Levanter's checkpoints": "levanter",
    },
    "lightning": {
        '`precision="16-mixed"`': "fp16|loss_scal",
        "Training of PyTorch modules, and reading `.ckpt` files": "torch|pickle",
        "hooks around each part of the loop": "hook|callback",
        "the learning-rate finder": "lr_find|rate_finder",
        "changing accumulation during a run": "accumulation_schedul",
        "pruning": "prune|pruning",
        "quantization of what trains": "fp8|quantised_step|mxfp",
        "16-bit floats with loss scaling": "fp16|loss_scal",
        "logging of arbitrary objects": "log_object|artifact",
    },
    "maxtext": {
        "`quantization` (int8, fp8)": "fp8|quantised_step|mxfp",
        "Families of models": "deepseek|phi|olmo|falcon|kimi",
        "paged attention": "paged",
        "quantized training": "fp8|quantised_step|mxfp",
        "multi-token prediction": "mtp|multi_token",
        "multimodal models": "multimodal|vision|vl$",
    },
    "orbax": {
        "`JaxRandomKeySave`": "pickle|handler",
        "`single_host_load_and_broadcast`": "broadcast",
        "`keep_time_interval`": "time_interval|n_seconds|latest_duration",
        "`atomicity_options`": "atomic|temporary_path",
        "`multiprocessing_options`": "multiprocessing|directory_creation",
    },
    "t5x": {
        "`train_ds-000-of-008` (state of tf.data)": "tf_data|train_ds",
        "gin itself": "gin",
        "seqio's tasks and vocabularies as objects": "seqio|vocabulary_of|task_registry",
        "export to SavedModel": "saved_?model",
        "scripts that start machines in a cloud": "sky|cluster_up|provision",
        "models of T5X's families beside T5": "long_?t5|switch",
    },
}
"""How each denial of a page begins, and the words of which the name of such a thing would have one."""


def doors():
    """Return the names of functions, arguments, commands, flags, families of models and choices."""
    words = {*functions(), *arguments(), *hugging_face._decoder.KEYS}
    for path, flags in commands().items():
        words |= {*path, *(flag.lstrip("-").replace("-", "_") for flag in flags)}
    for named in functions().values():
        for signature in filter(None, map(signature_of, named)):
            for each in signature.parameters.values():
                if "Literal" in str(each.annotation):
                    words |= {*re.findall(r"'([\w-]+)'", str(each.annotation))}
    return words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_denies_is_listed_and_has_no_door(page):
    denied = DENIED.get(page.stem.removeprefix("coming-from-"), {})
    phrases = {*denials(page)}
    assert not [phrase for phrase in phrases if not phrase.startswith(tuple(denied))]
    assert not [what for what in denied if not any(phrase.startswith(what) for phrase in phrases)]
    names = doors()
    open_doors = {
        what: [name for name in names if re.search(rf"(?i)(^|_)({words})", name)]
        for what, words in denied.items()
    }
    assert not {what: found for what, found in open_doors.items() if found}


def test_the_doors_are_those_of_what_was_once_denied():
    assert {
        "ray",
        "mixture",
        "lm_eval",
        "splash",
        "ring",
        "serve",
        "InMemory",
        "dpo",
        "pipeline_schedule",
        "text",
    } <= doors()


SAME = {"Deployer": mw.Deployer, "Trainer": mw.Trainer, "Predictor": mw.Predictor, "Fields": mw.Experiment}
"""The headings of the pages whose tables say that a name is the same here, and where it is."""


@pytest.mark.parametrize("name", ["redco", "axlearn"])
def test_what_a_page_calls_the_same_has_that_name_here(name):
    text = next(page for page in PAGES if page.stem.endswith(name)).read_text()
    missing, count = [], 0
    for heading, section in re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", text, re.M):
        for theirs in re.findall(r"^\| (.+?) \| the same(?:,.*?)? \|", section, re.M):
            for each in re.findall(r"`(\w+)", theirs):
                count += 1
                of = SAME[heading]
                known = {
                    *inspect.signature(of).parameters,
                    *dir(of),
                    *inspect.signature(getattr(of, "fit", of)).parameters,
                }
                is_set = f"self.{each}" in inspect.getsource(of)
                missing += [f"{heading}: {each}"] if each not in known and not is_set else []
    assert count >= 4
    assert not missing
