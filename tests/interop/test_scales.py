"""Files whose weights are codes with scales: DeepSeek-V3's in eight bits, gpt-oss' in four."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from fidgpt.graph import ConfigError
from fidgpt.interop import from_hf, load_hf, save_hf
from fidgpt.interop.hugging_face.files import from_eight_bits, from_four_bits
from fidgpt.model import LanguageModel

# Wider than a block and not a multiple of it, in one dimension, in both, and in none.
SIZES = {
    **{"hidden_size": 160, "intermediate_size": 130, "kv_lora_rank": 12, "n_group": 2},
    **{"moe_intermediate_size": 8, "n_routed_experts": 4, "num_attention_heads": 2},
    **{"num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2},
    **{"q_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"topk_group": 1, "vocab_size": 97, "first_k_dense_replace": 1, "rope_scaling": None},
    "max_position_embeddings": 16,
}
SETTINGS: dict[str, Any] = {
    **{"model_type": "deepseek_v3", "hidden_act": "silu", "n_shared_experts": 1},
    **{"rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": False, **SIZES},
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def by_hand(codes: Tensor, scales: Tensor) -> Tensor:
    """Number by number, with the scale of its block."""
    rows, columns = (torch.arange(size) // 128 for size in codes.shape)
    return codes.float() * scales[rows][:, columns]


def write(directory: Path, tensors: dict[str, Tensor], **settings: Any) -> Path:
    directory.mkdir()
    known = OSS if settings.get("model_type") == "gpt_oss" else SETTINGS
    (directory / "config.json").write_text(json.dumps(known | settings))
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    return directory


def saved(build: Callable[..., LanguageModel], path: Path, settings: dict[str, Any]) -> Any:
    """The model of a config.json, written to a directory, and its tensors there."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(settings))
    model = build(from_hf(str(path)))
    save_hf(model, path, seq_len=16)
    return model, safetensors.torch.load_file(path / "model.safetensors")


@pytest.fixture
def plain(build: Callable[..., LanguageModel], tmp_path: Path) -> dict[str, Tensor]:
    """The tensors of a small DeepSeek-V3, by their names in the files."""
    return saved(build, tmp_path / "plain", SETTINGS)[1]


def in_eight_bits(plain: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random codes and scales for all projections, and what they stand for."""
    torch.manual_seed(0)
    coded, meant = dict(plain), dict(plain)
    for name in [name for name in plain if "_proj" in name]:
        rows, columns = plain[name].shape
        codes = (torch.randn(rows, columns) * 30).to(torch.float8_e4m3fn)
        scales = torch.rand(-(-rows // 128), -(-columns // 128)) * 0.001
        coded |= {name: codes, f"{name}_scale_inv": scales}
        meant[name] = by_hand(codes, scales)
    return coded, meant


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (129, 300), (384, 7)])
def test_each_number_has_the_scale_of_its_block(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    codes = (torch.randn(shape) * 30).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-shape[0] // 128), -(-shape[1] // 128))
    assert torch.equal(from_eight_bits(codes, scales), by_hand(codes, scales))


def test_eight_bits_with_scales_are_read_as_what_they_stand_for(load, plain, tmp_path):
    coded, meant = in_eight_bits(plain)
    found = load(write(tmp_path / "coded", coded, quantization_config=FP8))
    wanted = load(write(tmp_path / "meant", meant))
    names = {name for name, _ in wanted.named_parameters()}
    assert {"blocks.1.mlp.experts.gate", "blocks.0.attention.kv_down.weight"} <= names
    assert all(map(torch.equal, found.parameters(), wanted.parameters()))


@pytest.mark.parametrize("scales", [{}, {"layers.0.mlp.up_proj": torch.ones(3, 3)}])
def test_eight_bits_without_their_scales_are_refused(build, plain, scales, tmp_path):
    coded, _ = in_eight_bits(plain)
    del coded["model.layers.0.mlp.up_proj.weight_scale_inv"]
    coded |= {f"model.{name}.weight_scale_inv": tensor for name, tensor in scales.items()}
    path = write(tmp_path / "coded", coded, quantization_config=FP8)
    with pytest.raises(ConfigError, match=r"layers.0.mlp.up_proj.weight: numbers of type F8_E4M3"):
        load_hf(build(from_hf(str(path))), path)


@pytest.mark.parametrize(
    "how",
    [
        {"quant_method": "fp8"},
        {"quant_method": "fp8", "weight_block_size": [64, 128]},
        {"quant_method": "mxfp4", "weight_block_size": [16, 16]},
        {"quant_method": "gptq"},
        "gptq",
    ],
)
def test_other_codes_are_refused_with_a_remedy(how: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SETTINGS | {"quantization_config": how}))
    with pytest.raises(ConfigError, match=r"quantization_config is .*blocks of 128.*dequantize"):
        from_hf(str(tmp_path))


OSS: dict[str, Any] = {
    **{"model_type": "gpt_oss", "attention_bias": True, "head_dim": 16, "hidden_act": "silu"},
    **{"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64},
    **{"num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2},
    **{"num_key_value_heads": 2, "num_local_experts": 3, "sliding_window": 8, "vocab_size": 97},
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}


def in_four_bits(plain: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random codes and scales for all experts, and what transformers takes them for."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(0)
    coded, meant = dict(plain), dict(plain)
    for name in [name for name in plain if name.endswith("_proj") and "experts" in name]:
        experts, columns, rows = coded.pop(name).shape
        blocks = torch.randint(256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(118, 124, blocks.shape[:-1], dtype=torch.uint8)
        coded |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        meant[name] = convert_moe_packed_tensors(blocks, scales).float()
    return coded, meant


@pytest.mark.xdist_group("transformers")  # whose import takes seconds
def test_four_bits_are_read_as_what_transformers_takes_them_for(build, load, tmp_path):
    model, plain = saved(build, tmp_path, OSS)
    coded, meant = in_four_bits(plain)
    assert len(coded) == len(plain) + 4
    found, wanted = (
        load(write(tmp_path / name, tensors, model_type="gpt_oss", quantization_config=codes))
        for name, tensors, codes in (("coded", coded, MXFP4), ("meant", meant, None))
    )
    assert all(map(torch.equal, found.parameters(), wanted.parameters()))
    del coded["model.layers.1.mlp.experts.down_proj_scales"]
    safetensors.torch.save_file(coded, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(OSS | {"quantization_config": MXFP4}))
    with pytest.raises(ConfigError, match=r"layers.1.mlp.experts.down_proj: absent there") as error:
        load_hf(model, tmp_path)
    assert "down_proj_blocks: [3, 64, 3, 16] there, absent in the model" in str(error.value)


def test_two_numbers_lie_in_a_byte_the_first_in_its_lower_half() -> None:
    codes = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    codes[0, 0, 0, :2] = torch.tensor([0x21, 0xFD])
    found = from_four_bits(codes, torch.tensor([[[128]]], dtype=torch.uint8))
    assert found.shape == (1, 32, 1)
    assert found[0, :5, 0].tolist() == [1.0, 2.0, -6.0, -12.0, 0.0]
