"""What is known of families, and of the keys of their files, beside their tables."""

from collections.abc import Mapping

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
        *("num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype", "use_grouped_mm"),
        *("moe_shared_expert_overlap", "reference_compile", "repad_logits_with_grad", "verbose"),
        *("inference_runner", "validate_runner_input", "max_batch_size", "max_sequence_length"),
        *("pad_key_length", "pre_allocate_kv_cache", "for_llm_compressor", "slow_but_exact"),
        "cache_implementation",
    ),
    "concerns training": (
        *("*dropout*", "*_pdrop", "initializer_range", "embedding_initializer_range"),
        *("router_aux_loss_coef", "router_jitter_noise", "aux_loss_alpha", "seq_aux"),
        *("z_loss_coefficient", "load_balance_coeff", "layerdrop", "init_std", "init_config"),
        *("init_device", "initializer_cutoff_factor", "linear_a_log_*", "linear_dt_*"),
        *("num_nextn_predict_layers", "num_mtp_layers", "mtp_*"),  # of further tokens
        *("num_mtp_modules", "use_mtp", "init_method", "block_*_init_scale", "moe_use_aux_free"),
        *("time_step_floor", "time_step_max", "time_step_min", "time_step_rank", "moe_capacity"),
    ),
    "names tokens, or how to choose them": (
        *("*_token_id", "pad_id", "decoder_start_token_id", "bad_words_ids", "suppress_tokens"),
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
        *("use_mrope", "boi_token_*", "eoi_token_*", "boa_token_*", "eoa_token_*", "projector_*"),
        *("multimodal_*", "spatial_merge_size"),
    ),
    "follows from other keys": (
        *("n_ctx", "is_decoder", "tie_encoder_decoder", "pruned_heads", "rope_parameters"),
        *("cross_attention_hidden_size", "original_max_position_embeddings", "rope_scaling"),
    ),
}

# Longest sequence where config.json names none, as in transformers 5's classes; for Bloom and
# Mamba 2, whose classes have none, the length of training sequences.
_SEQ_LENS = {
    256: "ctrl",
    512: "openai-gpt",
    1024: "gpt2 gpt-sw3 biogpt gpt_bigcode",
    2048: (
        "llama deepseek_v2 olmo2 olmo3 gpt_neox granite hyperclovax falcon olmo exaone4 "
        "hunyuan_v1_dense granitemoe granitemoeshared dots1 exaone_moe opt gpt_neo bloom phi "
        "gptj mpt codegen xglm gpt_neox_japanese granitemoehybrid hunyuan_v1_moe aria_text "
        "nanochat granitemoe_swa mamba2"
    ),
    4096: (
        "deepseek_v3 kimi_k2 phi3 olmoe arcee helium starcoder2 flex_olmo nemotron stablelm "
        "nemotron_h"
    ),
    8192: (
        "gemma2 vaultgemma gemma cohere cohere2 jais2 cohere2_moe granite_swa "
        "modernbert-decoder falcon_h1"
    ),
    9216: "emu3_text_model",
    16_384: "persimmon afmoe",
    32_768: (
        "internlm3 qwen2 qwen3 qwen3_moe smollm3 qwen2_moe qwen3_next axk1 minicpm3 "
        "qwen3_5_text qwen3_5_moe_text"
    ),
    65_536: "apertus olmo_hybrid",
    128_000: "lfm2 lfm3 lfm2_moe",
    131_072: (
        "iquestcoder mistral ministral mixtral gemma3_text youtu gpt_oss cwm ernie4_5 glm glm4 "
        "glm4_moe solar_open mellum minimax ernie4_5_moe hy_v3 llama4_text phimoe laguna"
    ),
    163_840: "deepseek_v32",
    196_608: "minimax_m2",
    202_752: "glm4_moe_lite glm_moe_dsa",
    262_144: "ministral3 bamba kolibri1 flint",
    524_288: "seed_oss",
    1_048_576: "kimi_linear",
}
SEQ_LENS: dict[str, int] = {family: n for n, names in _SEQ_LENS.items() for family in names.split()}

# Components that families need which no component of fidgpt is, by a part of the model_type.
MISSING = {
    "qwen4": "embedding of n-grams, nor one of each layer (Qwen 4)",
    "axk2": "norm with a gate (A.X K2)",
    "dbrx": "clipping of queries, keys and values (DBRX)",
    "hy_v4": "hyper-connections (DeepSeek V4)",
    "mimo_v2": "values of another size than keys (MiMo V2)",
    "minimax_m3": "indexer beside grouped queries (MiniMax M3)",
    "mllama": "attention to images (Llama 3.2)",
    "bailing_hybrid": "delta net with bounded decays, nor latent attention with a gate (Ling 3.0)",
    "mamba": "state space layer (Gu and Dao, 2023, arXiv:2312.00752)",
    "jamba": "state space layer (Gu and Dao, 2023, arXiv:2312.00752)",
    "zamba": "attention that layers share at some depths (Zamba)",
    "recurrent_gemma": "gated linear recurrence (De et al., 2024, arXiv:2402.19427)",
    "rwkv": "recurrence of RWKV (Peng et al., 2023, arXiv:2305.13048)",
    "xlstm": "extended LSTM (Beck et al., 2024, arXiv:2405.04517)",
    "zaya": "attention with convolutions (Zaya)",
    "deepseek_v4": "compressed sparse attention (DeepSeek V4)",
    "gemma3n": "embedding of each layer (Gemma 3n)",
    "gemma4": "embedding of each layer (Gemma 3n)",
    "diffllama": "differential attention (Ye et al., 2024, arXiv:2410.05258)",
    "doge": "dynamic mask of attention (Doge)",
    "bitnet": "MLP with a norm inside (BitNet)",
    "longcat": "layer with two attentions (LongCat)",
    "jetmoe": "mixture of attentions (JetMoE)",
    "hrm": "recurrence over depth (HRM)",
    "blt": "transformer over patches of bytes (BLT)",
    "cohere_compass": "RoPE in layers with a window alone, by rope_parameters (Cohere Compass)",
    "cpmant": "bias of scores by segments and positions (CPM-Ant)",
    "dots3_note": "latent attention with a gate (Dots 3)",
    "inkling": "logits of relative positions (Inkling)",
    "moshi": "decoder of audio codes in depth (Moshi)",
    "moss_transcribe": "encoder of audio (MOSS)",
}
