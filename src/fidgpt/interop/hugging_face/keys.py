"""Keys of config.json that are no settings of a family: each has no effect, or is named."""

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from fidgpt.configs.hub import Family

_PARTIAL = "partial_rotary_factor"
# Of every family that has no setting for it: the values that change nothing, the default first.
FIXED: Mapping[str, tuple[Any, ...]] = {
    _PARTIAL: (None, 1.0),
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "per_layer_config": (None, {}),
    "rope_local_base_freq": (None,),
    "llama_4_scaling_beta": (None,),
}
# Names and patterns of keys that change no number that a model computes, by the reason.
WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "says what the files are": (
        *("architectures", "auto_map", "custom_pipelines", "dtype", "model_type", "name_or_path"),
        *("_name_or_path", "_commit_hash", "torch_dtype", "torchscript", "transformers_version"),
        *("unsloth_*", "transformers.js_config", "quantization_config"),
    ),
    "says what a call returns, or how it computes that": (
        *("output_*", "return_dict", "use_cache", "use_return_dict", "chunk_size_feed_forward"),
        *("attn_implementation", "_attn_implementation*", "_experts_implementation*"),
        *("experts_implementation", "pretraining_tp", "reorder_and_upcast_attn", "use_bfloat16"),
        *("ep_size", "use_flash_attn", "gradient_checkpointing", "tie_last_hidden_states"),
    ),
    "concerns training": (
        *("*dropout*", "*_pdrop", "initializer_range", "embedding_initializer_range"),
        *("router_aux_loss_coef", "router_jitter_noise", "aux_loss_alpha", "seq_aux"),
    ),
    "names tokens, or how to choose them": (
        *("*_token_id", "decoder_start_token_id", "bad_words_ids", "suppress_tokens"),
        *("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "do_sample"),
        *("temperature", "top_k", "top_p", "typical_p", "num_beams", "num_beam_groups"),
        *("num_return_sequences", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("repetition_penalty", "length_penalty", "diversity_penalty", "early_stopping"),
        *("max_length", "min_length", "max_new_tokens", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "tokenizer_class", "prefix"),
    ),
    "belongs to another head": (
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
        *("task_specific_params", "classifier_*", "summary_*"),
    ),
    "belongs to images or sound": (
        *("vision_config", "audio_config", "image_*", "video_*", "vision_*", "mm_*"),
        *("boi_token_*", "eoi_token_*", "boa_token_*", "eoa_token_*", "projector_*"),
        *("multimodal_*", "spatial_merge_size"),
    ),
    "follows from other keys": (
        *("n_ctx", "is_decoder", "tie_encoder_decoder", "pruned_heads", "rope_parameters"),
        *("cross_attention_hidden_size", "original_max_position_embeddings", "rope_scaling"),
    ),
}
EXPERTS = ("num_experts", "num_local_experts")  # names of one key, of the hub and of transformers 5
UNKNOWN = "unknown"


def other_values(family: Family, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each key with a value that the family does not compute."""
    settings = family.settings.values()
    for key, allowed in {**FIXED, **family.fixed}.items():
        if key in config and config[key] not in allowed and key not in settings:
            ours = " or ".join(repr(value) for value in allowed)
            yield f"{key} is {config[key]!r:.60}, and fidgpt's {family.model_type} computes {ours}"


def unknown_keys(family: Family, config: Mapping[str, Any]) -> list[str]:
    """Return the keys that are set and that may matter, as fidgpt does not know them."""
    return [
        key
        for key, value in config.items()
        if value is not None and reason_of(family, key) == UNKNOWN
    ]


def reason_of(family: Family, key: str) -> str:
    """Return why a key is no error: what reads it, or why it has no effect, or `UNKNOWN`."""
    read = {*family.settings.values(), *family.aliases, *family.switches.values()}
    read |= {*family.known, *family.constants}
    if key in read or (key in EXPERTS and read.intersection(EXPERTS)):
        return "read"
    if key in FIXED or key in family.fixed:
        return "has the value that fidgpt computes"
    return next(
        (
            reason
            for reason, patterns in WITHOUT_EFFECT.items()
            if any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
        ),
        UNKNOWN,
    )
