"""The files of a tokenizer, as `save_pretrained` of `transformers` writes them.

tokenizer.json            the vocabulary and the rules, read by the package `tokenizers`
tokenizer_config.json     the special tokens, and often the template of chats
special_tokens_map.json   special tokens that tokenizer_config.json lacks, of older versions
chat_template.jinja       the template, before the one in tokenizer_config.json
generation_config.json    tokens that end a text, before those in config.json; how they are drawn is not taken

A config with a key that nobody here knows is refused: it may say that tokens are others, as
`split_special_tokens` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import import_extra, local_path, parse_object, read_file
from meshwright.errors import UsageError, listed

CONFIG, TEMPLATE, TOKENIZER = "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"
ADDED, SPECIAL = "added_tokens.json", "special_tokens_map.json"
GENERATION, MODEL = "generation_config.json", "config.json"
_LARGEST_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class Files:
    """The content of a tokenizer's files."""

    path: Path
    """The folder."""
    tokenizer: Any
    """The `tokenizers.Tokenizer`, without truncation and padding."""
    special: Mapping[str, Any]
    """The special tokens by their usual names, such as `eos_token`, as templates use them."""
    templates: Mapping[str, str]
    """The templates by name. One that has no name is "default"."""


def read_folder(path: str | Path) -> Files:
    """Read the files of a tokenizer."""
    directory = local_path(path, "Copy the tokenizer to a disk.")
    config, tokenizer = _object(directory / CONFIG), _tokenizer(directory)
    _check_added(directory, config, tokenizer)
    return Files(directory, tokenizer, _special(directory, config), _templates(directory, config))


def end_tokens(path: str | Path) -> tuple[int, ...]:
    """Return the tokens that end a text: that of the tokenizer, and those that generation stops at.

    The latter are `eos_token_id` of `generation_config.json`, else of `config.json`. It does without
    the package `tokenizers`.

    Example:
      >>> folder = mw.data.train_tokenizer(["the cat"], "ended", vocab_size=270, eos_token="<end>")
      >>> mw.data._internal.end_tokens(folder) == tuple(mw.lm.tokenizer_of(folder).encode("<end>"))
      True
    """
    directory = local_path(path, "Copy the tokenizer to a disk.")
    end = _special(directory, _object(directory / CONFIG)).get("eos_token")
    tokenizer = _object(directory / TOKENIZER)
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    named = dict(vocabulary) if isinstance(vocabulary, Mapping) else {}
    named |= {
        x.get("content"): x.get("id") for x in tokenizer.get("added_tokens") or [] if isinstance(x, Mapping)
    }
    ends = [] if end not in named else [named[end]]
    for file in (directory / GENERATION, directory / MODEL):
        ids = _object(file).get("eos_token_id")
        if ids is not None:
            ends += ids if isinstance(ids, list) else [ids]
            break
    if wrong := [x for x in ends if not isinstance(x, int) or isinstance(x, bool) or x < 0]:
        raise UsageError(
            f"the files in {directory} say that {wrong[0]!r} ends a text; expected a token's number."
        )
    return tuple(dict.fromkeys(ends))


def _object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no file."""
    try:
        config = parse_object(read_file(file))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        kind = {CONFIG: "a tokenizer's config", TOKENIZER: "a tokenizer"}.get(file.name, "a model's config")
        raise UsageError(f"{file} is not {kind}: {error}.") from None
    check_keys(file, config)
    return config


def _tokenizer(directory: Path) -> Any:
    package = import_extra("tokenizers", extra="text", needed_by=f"the tokenizer in {directory}")
    file = directory / TOKENIZER
    try:
        tokenizer = package.Tokenizer.from_buffer(read_file(file))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}.\n"
            f"  Give a folder with a {TOKENIZER}; `save_pretrained` of a fast tokenizer writes it."
        ) from None
    except Exception as error:
        # The package `tokenizers` raises no class of its own.
        raise UsageError(f"{file} is not a tokenizer of the package tokenizers: {error}.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _check_added(directory: Path, config: Mapping[str, Any], tokenizer: Any) -> None:
    """Check that the tokens that other files add are those of `tokenizer.json`."""
    decoder = config.get("added_tokens_decoder") or {}
    added = [*_object(directory / ADDED).items(), *((_text(token), id_) for id_, token in decoder.items())]
    wrong = [f"{x!r} is {id_}" for x, id_ in added if str(tokenizer.token_to_id(str(x))) != str(id_)]
    if wrong:
        raise UsageError(
            f"{directory / TOKENIZER} has not the tokens that {CONFIG} or {ADDED} say: {listed(wrong)}.\n"
            "  Save the tokenizer anew: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )


def _special(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special tokens; those that the config lacks are in a file of older versions."""
    values = _object(directory / SPECIAL) | {
        name: value for name, value in config.items() if value is not None
    }
    named = {name: _text(value) for name, value in values.items() if name.endswith("_token")}
    return {name: text for name, text in named.items() if isinstance(text, str)}


def _text(value: Any) -> Any:
    return value.get("content") if isinstance(value, Mapping) else value


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    setting = config.get("chat_template")
    listed = setting if isinstance(setting, list) else [{"name": "default", "template": setting}]
    pairs = [(entry.get("name"), entry.get("template")) for entry in listed if isinstance(entry, Mapping)]
    templates = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    try:
        templates["default"] = read_file(directory / TEMPLATE).decode()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{directory / TEMPLATE} cannot be read: {error}.") from None
    if too_long := [name for name, text in templates.items() if len(text) > _LARGEST_TEMPLATE]:
        raise UsageError(f"the template {too_long[0]!r} in {directory} is larger than a megabyte.")
    return templates


# The rest of a tokenizer's config are special tokens, whose names end in _token. These either say again what
# tokenizer.json does, or speak of padding, cutting and decoding, which are done here in other ways.
_TOKENIZER_KEYS = """
    add_bos_token add_eos_token add_prefix_space added_tokens_decoder additional_special_tokens backend
    chat_template clean_up_tokenization_spaces do_basic_tokenize do_lower_case errors extra_ids
    extra_special_tokens fix_mistral_regex from_slow init_inputs is_local keep_accents legacy
    local_files_only max_len max_length model_input_names model_max_length model_specific_special_tokens
    name_or_path never_split pad_to_multiple_of pad_token_type_id padding_side processor_class
    remove_space response_schema return_token_type_ids sp_model_kwargs spaces_between_special_tokens
    special_tokens_map_file stride strip_accents tokenizer_class tokenize_chinese_chars tokenizer_file
    trim_offsets truncation_side truncation_strategy trust_remote_code use_default_system_prompt
    use_fast vocab_size vocab_type
"""
# Of how tokens are drawn, only the ends are taken; the rest is asked for with `Decoding`.
_GENERATION_KEYS = """
    _from_model_config assistant_confidence_threshold assistant_early_exit assistant_lookbehind
    bos_token_id cache_implementation chat_format compile_config decoder_start_token_id
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty
    eos_token_id epsilon_cutoff eta_cutoff exponential_decay_length_penalty is_assistant length_penalty
    low_memory max_length max_matching_ngram_size max_new_tokens max_time max_window_size min_length
    min_new_tokens min_p no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule
    num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states output_logits
    output_scores pad_token_id penalty_alpha prefill_chunk_size prompt_lookup_num_tokens
    remove_invalid_values renormalize_logits repetition_penalty return_dict_in_generate
    return_legacy_cache target_lookbehind temperature token_healing top_k top_p transformers_version
    trust_remote_code typical_p use_cache use_model_defaults
"""
_KNOWN_KEYS = {
    "tokenizer_config.json": {*_TOKENIZER_KEYS.split()},
    "generation_config.json": {*_GENERATION_KEYS.split()},
}


def check_keys(file: Path, config: Mapping[str, Any]) -> None:
    """Check that all keys of a config are known, but for those that are null, false or empty."""
    if file.name not in _KNOWN_KEYS:
        return
    names = {key for key in config if key.endswith("_token")} if file.name.startswith("tokenizer") else set()
    rest = {key: x for key, x in config.items() if key not in _KNOWN_KEYS[file.name] | names}
    unknown = [f"{key}: {x!r}" for key, x in rest.items() if x or type(x) in (int, float)]
    if unknown:
        raise UsageError(
            f"{file} has keys that are not known here, and may change the tokens: {listed(unknown)}.\n"
            "  Leave them out if they do not."
        )
