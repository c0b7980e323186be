"""The files beside a model's weights: its `config.json`, its tokenizer, and its settings for generation.

The keys of a `config.json` are those that a model here reads, and those that change no result. `transformers`
passes over a key that its model does not read, so a file may ask for a feature that is never computed. Any
other key is refused here, unless the key is off: null, false, 0 or empty, as each version writes new
features.
"""

import errno
import logging
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from meshwright.base._internal import local_path, read_file
from meshwright.errors import CheckpointError, UsageError
from meshwright.processes._internal import on_lead

# Keys of all models for training, for generation, for labels, and of where a model is from. Dropout is not
# used here in tuning either, unless it is asked for.
_HARMLESS = (
    *("model_type", "architectures", "auto_map", "transformers_version", "_name_or_path", "_commit_hash"),
    *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
    *("_flash_attn_2_enabled", "transformers.js_config", "model_max_length", "tokenizer_model_max_length"),
    *("torch_dtype", "dtype", "use_bfloat16", "torchscript", "tf_legacy_loss", "gradient_checkpointing"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "suppress_tokens", "tokenizer_class"),
    *("max_position_embeddings", "max_sequence_length", "seq_length", "use_cache", "cache_implementation"),
    *("initializer_range", "initializer_factor", "pretraining_tp", "chunk_size_feed_forward"),
    *(
        "attention_dropout",
        "hidden_dropout",
        "dropout_rate",
        "dropout",
        "classifier_dropout",
        "router_jitter_noise",
    ),
    *("attention_probs_dropout_prob", "hidden_dropout_prob", "resid_dropout", "embd_dropout"),
    *("neftune_noise_alpha", "tokenizer_padding_side", "cls_token_id", "mask_token_id", "unk_token_id"),
    *("use_flash_attention", "remove_invalid_values"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "output_router_logits", "output_attentions"),
    *("output_hidden_states", "output_scores", "output_past", "return_dict", "return_dict_in_generate"),
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "prefix"),
    *("_num_labels", "task_specific_params"),
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
    *("num_return_sequences", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("unsloth_version", "unsloth_fixed", "is_llama_config"),
)
_NUMBERS = (
    *("rms_norm_eps", "layer_norm_epsilon", "query_pre_attn_scalar", "attn_logit_softcapping"),
    *("final_logit_softcapping", "router_aux_loss_coef", "relative_attention_max_distance"),
)
_FLAGS = ("tie_word_embeddings", "scale_decoder_outputs", "use_sliding_window", "norm_topk_prob")


def check_keys(settings: Mapping[str, Any], names: Collection[str], pairs: Mapping[str, str]) -> None:
    """Check that all keys of a `config.json` are known, have values of their type, and do not contradict."""
    names = {*names, *_HARMLESS, *pairs, *pairs.values()}
    if unknown := [f"{key}={x!r}" for key, x in settings.items() if x and key not in names]:
        raise CheckpointError(
            f"the {settings['model_type']} here does not support {', '.join(unknown)} of the config.json. "
            "Take out a key of which you know that it changes nothing of what the model computes."
        )

    def isa(key: str, *types: type) -> bool:
        return settings.get(key) is None or type(settings[key]) in types

    wrong = [f"{key} is {settings[key]!r}, not a number" for key in _NUMBERS if not isa(key, int, float)]
    wrong += [f"{key} is null" for key in _NUMBERS[:2] if settings.get(key, 0) is None]
    wrong += [f"{key} is {settings[key]!r}, not true or false" for key in _FLAGS if not isa(key, bool)]
    for pair in pairs.items():
        first, other = (_value(settings, name) for name in pair)
        if first != other and first is not None and other is not None:
            wrong.append(f"{pair[0]} is {first!r}, but {pair[1]}, which means the same, is {other!r}")
    if wrong:
        raise CheckpointError(f"in the config.json of a {settings['model_type']} model, {'; '.join(wrong)}.")


def _value(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key, or of a key in an object; None if there is none."""
    value: Any = settings
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


NAMES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
)
"""The names that `save_pretrained` of Hugging Face gives to these files. Nothing else is copied."""
log = logging.getLogger("meshwright")


def companions(directory: Path) -> dict[str, bytes]:
    """Return the contents of a model's known files, by name. Links, and what is no file, are left out."""
    # A link may lead to any file of this machine, so it is not followed, and the log says so.
    contents: dict[str, bytes] = {}
    for path in (directory / name for name in NAMES):
        try:
            contents[path.name] = _content(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK, errno.EINVAL):
                raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
            log.warning("%s is not copied, as it is a link or not an ordinary file; copy it yourself", path)
    return contents


def check_companions(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Check that files can be written to a directory, or are there already."""
    for name, content in contents.items():
        path = directory / name
        if os.path.lexists(path) and (path.is_symlink() or read_file(path) != content):
            raise UsageError(
                f"{path} exists already, and differs from the model's: choose another directory."
            )


def write_companions(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files that are not there yet."""
    for name, content in contents.items():
        if not os.path.lexists(directory / name):
            with (directory / name).open("xb") as file:
                file.write(content)


def copy_companions(model: str | Path, directory: str | Path) -> list[Path]:
    """Copy the tokenizer, its template and the settings for generation of a model beside another one.

    Collective: process 0 copies. Files that are there already stay. Links are left out, and logged.

    Returns:
      The paths of all these files.
    """
    contents, target = companions(local_path(model)), local_path(directory)
    check_companions(target, contents)
    on_lead(lambda: write_companions(target, contents))
    return [target / name for name in contents]


def _content(path: Path) -> bytes:
    """Return the content of a file."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not an ordinary file", str(path))
        return file.read()
