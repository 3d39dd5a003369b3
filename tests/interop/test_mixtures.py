"""What the hub's files of mixtures say beside what transformers saves, and what they must not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import safetensors.torch
import torch

from fidgpt import configs
from fidgpt.fiddlers import use_lora
from fidgpt.graph import ConfigError, diff, diff_text
from fidgpt.interop import from_hf, save_hf
from fidgpt.model import LanguageModel, is_adapter

YARN_OF_DEEPSEEK = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}
DEEPSEEK = {
    "hidden_act": "silu",
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "attention_bias": False,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}
# As on the hub, as far as it is about what is computed; numbers without a fraction are whole.
HUB: dict[str, dict[str, Any]] = {
    "mixtral_8x7b": {
        "model_type": "mixtral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen3_30b_a3b": {
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "deepseek_v2_lite": {
        **DEEPSEEK,
        "model_type": "deepseek_v2",
        "first_k_dense_replace": 1,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "rope_scaling": {**YARN_OF_DEEPSEEK, "mscale": 0.707, "mscale_all_dim": 0.707},
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "topk_group": 1,
        "topk_method": "greedy",
        "vocab_size": 102400,
    },
    "deepseek_v3": {
        **DEEPSEEK,
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "rope_scaling": {**YARN_OF_DEEPSEEK, "mscale": 1.0, "mscale_all_dim": 1.0},
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "vocab_size": 129280,
    },
    "gpt_oss_20b": {
        "model_type": "gpt_oss",
        "attention_bias": True,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
}
TINY_V3 = HUB["deepseek_v3"] | {
    "hidden_size": 32,
    "intermediate_size": 40,
    "kv_lora_rank": 12,
    "max_position_embeddings": 16,
    "moe_intermediate_size": 8,
    "n_routed_experts": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "q_lora_rank": 20,
    "vocab_size": 97,
}
TINY = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "moe_intermediate_size": 8,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
}


def said(directory: Path, settings: dict[str, Any]) -> str:
    """A directory with nothing but a config.json."""
    (directory / "config.json").write_text(json.dumps(settings))
    return str(directory)


@pytest.mark.parametrize("name", HUB)
def test_what_the_hub_says_is_the_named_config(name: str, tmp_path: Path) -> None:
    found, named = from_hf(said(tmp_path, HUB[name])), getattr(configs, name)()
    assert not diff(found, named), diff_text(diff(found, named))


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method is 'greedy'"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave is False"),
        ("deepseek_v3", {"num_key_value_heads": 8}, "num_kv_heads=8, .* num_heads=128"),
        ("deepseek_v2_lite", {"norm_topk_prob": True}, "norm_topk_prob is True"),
        ("gpt_oss_20b", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ],
)
def test_what_no_mixture_computes_is_refused(
    name: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf(said(tmp_path, HUB[name] | changed))


@pytest.mark.parametrize("name", ["mixtral_8x7b", "qwen3_30b_a3b"])
def test_adapters_of_experts_are_added_to_their_weights(
    name: str,
    build: Callable[[fdl.Config], LanguageModel],
    load: Callable[[Path], LanguageModel],
    tmp_path: Path,
) -> None:
    cfg = from_hf(said(tmp_path, HUB[name] | TINY))
    use_lora(cfg, rank=2)
    model = build(cfg)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_hf(model, tmp_path, seq_len=16)
    plain, tokens = load(tmp_path), torch.arange(12)[None]
    assert not any(is_adapter(path, one) for path, one in plain.named_parameters())
    torch.testing.assert_close(plain(tokens), model(tokens), atol=1e-4, rtol=1e-4)


def test_the_further_prediction_of_deepseek_v3_is_left_out(
    build: Callable[[fdl.Config], LanguageModel],
    load: Callable[[Path], LanguageModel],
    tmp_path: Path,
) -> None:
    model = build(from_hf(said(tmp_path, TINY_V3)))
    assert save_hf(model, tmp_path, seq_len=16) == "DeepseekV3ForCausalLM"
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["num_nextn_predict_layers"] == 0
    assert kept["rope_scaling"].items() >= {"mscale": 1.0, "mscale_all_dim": 1.0}.items()
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name in ("enorm.weight", "eh_proj.weight", "mlp.gate.e_score_correction_bias"):
        tensors[f"model.layers.61.{name}"] = torch.zeros(2)
    safetensors.torch.save_file(tensors, file)
    assert all(map(torch.equal, load(tmp_path).parameters(), model.parameters()))
