"""The keys of a tokenizer's and of a generation's config that are known; a config with another is refused.

A key that nobody here knows may say that tokens are others, as `split_special_tokens` does.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.errors import UsageError, listed

# The rest of a tokenizer's config are special tokens, whose names end in _token. These either say again what
# tokenizer.json does, or speak of padding, cutting and decoding, which are done here in other ways.
_TOKENIZER = """
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
_GENERATION = """
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
_KNOWN = {"tokenizer_config.json": {*_TOKENIZER.split()}, "generation_config.json": {*_GENERATION.split()}}


def check_keys(file: Path, config: Mapping[str, Any]) -> None:
    """Check that all keys of a config are known, but for those that say nothing: null, false and empty."""
    if file.name not in _KNOWN:
        return
    names = {key for key in config if key.endswith("_token")} if file.name.startswith("tokenizer") else set()
    rest = {key: x for key, x in config.items() if key not in _KNOWN[file.name] | names}
    unknown = [f"{key}: {x!r}" for key, x in rest.items() if x or type(x) in (int, float)]
    if unknown:
        raise UsageError(
            f"{file} has keys that are not known here, and may change the tokens: {listed(unknown)}.\n"
            "  Leave them out if they do not."
        )
