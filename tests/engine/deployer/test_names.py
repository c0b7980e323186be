"""Methods, and the order and defaults of their arguments, are redco 0.4.23's; more is by keyword only.

Arguments are called by the words of the table in the design.
"""

import inspect
import re
from inspect import Parameter
from pathlib import Path

import pytest

import meshwright as mw

DOCUMENT = Path(__file__).parents[3] / "docs/coming-from-redco.md"


class Redco:
    """The signatures of redco's Deployer."""

    # fmt: off
    def __init__(
        self, seed, num_model_shards=1, verbose=True, workdir=None, num_processes=None, host0_address=None,
        host0_port=None, process_id=None, num_local_devices=None, run_tensorboard=False,
        wandb_init_kwargs=None,
    ): ...
    def get_local_global_micro_batch_size(self, per_device_batch_size): ...
    def get_accumulate_grad_batches(self, batch_size, per_device_batch_size): ...
    def get_model_input_batches(
        self, examples, per_device_batch_size, collate, shuffle, shuffle_key, desc, is_train=False,
        microbatches=None,
    ): ...
    def get_lr_schedule_fn(
        self, train_size, per_device_batch_size, epochs, learning_rate, schedule_type="linear",
        warmup_ratio=0.0, warmup_steps=None, init_learning_rate=0.0, end_learning_rate=0.0,
    ): ...
    def get_sharding_rules(self, params_shape_or_params): ...
    def get_params_spec(self, params_shape_or_params, rules): ...
    def get_opt_state_spec(self, params_shape_or_params, params_spec, optimizer): ...
    def shard_params(self, params, params_spec, desc="params"): ...
    def run_model_step(self, step_fn, input_args): ...
    def gen_rng(self): ...
    def gen_model_step_rng(self): ...
    def log_info(self, info, title=None, step=None): ...
    def log_metrics(self, metrics, step): ...
    def save_outputs(self, outputs, desc, step): ...
    def save_ckpt(self, ckpt_dir, params, opt_state=None, float_dtype=None, **kwargs): ...
    def load_params_shape(self, ckpt_dir): ...
    def load_ckpt(
        self, ckpt_dir, rules=None, optimizer=None, float_dtype=None, load_params=True,
        load_opt_state=True, update_key=False,
    ): ...
    def load_last_ckpt(
        self, optimizer=None, rules=None, float_dtype=None, load_params=True,
        load_opt_state=True, update_key=True,
    ): ...
    # fmt: on


METHODS = [name for name, of in vars(Redco).items() if callable(of)]


def arguments(function):
    _, *parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default, p.kind) for p in parameters]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_what_redco_s_takes_in_the_same_order(name):
    found = arguments(getattr(mw.Deployer, name))
    assert [each for each in found if each[2] is not Parameter.KEYWORD_ONLY] == arguments(
        getattr(Redco, name)
    )


def test_the_table_for_those_who_come_from_redco_has_every_name():
    table = DOCUMENT.read_text().partition("## Deployer\n")[2].partition("\n## ")[0]
    told = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)", row)}
    assert told >= {*METHODS, "mesh", "workdir"} - {"__init__"}
    arguments = {
        *inspect.signature(mw.Deployer).parameters,
        "n_model_shards",
        "n_local_devices",
        "n_processes",
    }
    assert told <= {*dir(mw.Deployer), "Deployer", *arguments}
