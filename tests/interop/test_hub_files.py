"""The files of a Hugging Face directory: forms, codes, shards, and what does not fit."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import safetensors.torch
import torch
from torch import Tensor

from fidgpt.data import DataError, TokenizerFile
from fidgpt.fiddlers import unroll, use_alibi, use_lora
from fidgpt.files import LIST
from fidgpt.graph import ConfigError, bind
from fidgpt.graph import build as build_graph
from fidgpt.graph.codec import find_name
from fidgpt.interop import from_hf, load_hf, save_hf
from fidgpt.interop.hugging_face.files import TensorFiles
from fidgpt.model import LanguageModel, is_adapter

pytestmark = pytest.mark.slow
INDEX = "model.safetensors.index.json"


def equal(found: torch.nn.Module, wanted: torch.nn.Module) -> bool:
    return all(map(torch.equal, found.parameters(), wanted.parameters()))


def change(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Let `change` mutate the tensors of model.safetensors."""
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def configure(directory: Path, **settings: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_shards_hold_no_more_than_they_may_and_are_read_by_their_index(directory, load, tmp_path):
    model = load(directory)
    save_hf(model, tmp_path, seq_len=24, max_shard_size=60_000)
    text = (tmp_path / INDEX).read_text()
    index = json.loads(text)
    files = sorted(tmp_path.glob("model-*-of-*.safetensors"))
    assert len(files) > 2
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    for path in files:
        tensors = safetensors.torch.load_file(path)
        sizes = [tensor.nbytes for tensor in tensors.values()]
        assert sum(sizes) <= 60_000 or len(sizes) == 1
        assert all(index["weight_map"][name] == path.name for name in tensors)
        assert path.stat().st_mode == (tmp_path / INDEX).stat().st_mode
    assert equal(load(tmp_path), model)
    for shard, message in (
        ("model-00001", r"model-00001 cannot be read: No such file"),
        (files[0].name, r"index.json names 1 tensors [\s\S]*, such as lost; "),
    ):
        changed = {"weight_map": index["weight_map"] | {"lost": shard}}
        (tmp_path / INDEX).write_text(json.dumps(changed))
        with pytest.raises(ConfigError, match=message):
            load_hf(model, tmp_path)


@pytest.mark.parametrize("sizes", [(60_000, 10**9), (10**9, 60_000), (30_000, 60_000)])
def test_earlier_weights_are_removed(directory, load, tmp_path, sizes):
    out = tmp_path / "out"
    before, now = load(directory), load(directory)
    with torch.no_grad():
        for parameter in before.parameters():
            parameter.add_(1)
    for model, size in zip((before, now), sizes, strict=True):
        save_hf(model, out, seq_len=24, max_shard_size=size)
    assert equal(load(out), now)
    named = {"model.safetensors"}
    if (out / INDEX).exists():
        named = {INDEX, *json.loads((out / INDEX).read_text())["weight_map"].values()}
    assert {path.name for path in out.iterdir()} == {"config.json", LIST, *named}


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_files_that_no_export_has_written_stay(directory, load, tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("theirs")
    with pytest.raises(ConfigError, match=f"{name} would be lost, and no export has written it"):
        save_hf(load(directory), out, seq_len=24)
    assert [(one.name, one.read_text()) for one in out.iterdir()] == [(name, "theirs")]
    (out / name).unlink()
    save_hf(load(directory), out, seq_len=24)
    (out / "model-00001-of-00002.safetensors").write_text("theirs")
    with pytest.raises(ConfigError, match="would be lost"):
        save_hf(load(directory), out, seq_len=24)


def test_files_cannot_name_what_writes():
    assert find_name("fidgpt.interop:load_hf") is load_hf
    for name in ("hugging_face.hub:save_hf", "targets:write_targets", "hugging_face:from_hf"):
        with pytest.raises(ConfigError, match="refused"):
            find_name(f"fidgpt.interop.{name}")


def test_files_of_the_bare_model_and_old_masks_are_read(directory, load):
    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for i in range(3):
            tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
            tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    expected = load(directory)
    change(directory, rename)
    assert equal(load(directory), expected)


SMALL = {
    **{"hidden_size": 32, "intermediate_size": 24, "max_position_embeddings": 16, "head_dim": 8},
    **{"moe_intermediate_size": 8, "num_attention_heads": 4, "num_hidden_layers": 2},
    **{"num_key_value_heads": 2, "vocab_size": 97},
}


@pytest.mark.parametrize("name", ["mixtral_8x7b", "qwen3_30b_a3b"])
def test_adapters_of_experts_are_added_to_their_weights(name, published, hub, build, load):
    path = hub(**published[name] | SMALL)
    cfg = from_hf(str(path))
    use_lora(cfg, rank=2)
    model = build(cfg)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    (path / "config.json").unlink()
    save_hf(model, path, seq_len=16)
    plain, tokens = load(path), torch.arange(12)[None]
    assert not any(is_adapter(path, one) for path, one in plain.named_parameters())
    torch.testing.assert_close(plain(tokens), model(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("name", ["mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v3", "gpt_oss_20b"])
def test_experts_in_one_tensor_are_read_as_single_ones(name, published, hub, build, load, tmp_path):
    """As transformers 5 saves them by `save_original_format=False`."""
    from transformers import AutoModelForCausalLM

    sizes = {"kv_lora_rank": 12, "q_lora_rank": 20, "n_routed_experts": 16}
    sizes |= {"num_key_value_heads": 4, "num_hidden_layers": 4}
    further = sizes if name == "deepseek_v3" else {}
    path = hub(**published[name] | SMALL | further)
    model = build(from_hf(str(path)))
    (path / "config.json").unlink()
    save_hf(model, path / "single", seq_len=16)
    theirs = AutoModelForCausalLM.from_pretrained(path / "single")
    theirs.save_pretrained(path / "fused", save_original_format=False)
    assert any(name.endswith("gate_up_proj") for name in TensorFiles(path / "fused").shapes)
    assert equal(load(path / "fused"), model)


def test_a_tied_table_is_read_under_either_name(directory, load):
    model = load(directory)
    change(
        directory,
        lambda tensors: tensors.update({"lm_head.weight": tensors.pop("transformer.wte.weight")}),
    )
    assert equal(load(directory), model)


def test_the_further_prediction_of_deepseek_v3_is_left_out(published, hub, build, load):
    sizes = {"kv_lora_rank": 12, "q_lora_rank": 20, "n_routed_experts": 16, "num_hidden_layers": 4}
    sizes = SMALL | sizes | {"num_key_value_heads": 4}
    path = hub(**published["deepseek_v3"] | sizes)
    model = build(from_hf(str(path)))
    (path / "config.json").unlink()
    assert save_hf(model, path, seq_len=16) == "DeepseekV3ForCausalLM"
    kept = json.loads((path / "config.json").read_text())
    assert kept["num_nextn_predict_layers"] == 0
    assert kept["rope_scaling"].items() >= {"mscale": 1.0, "mscale_all_dim": 1.0}.items()
    names = ("enorm.weight", "eh_proj.weight", "mlp.gate.e_score_correction_bias")
    further = {f"model.layers.61.{name}": torch.zeros(2) for name in names}
    change(path, lambda tensors: tensors.update(further))
    assert equal(load(path), model)


def test_every_tensor_that_does_not_fit_is_listed_and_nothing_is_loaded(directory, build):
    def damage(tensors: dict[str, Tensor]) -> None:
        del tensors["transformer.h.1.attn.c_attn.weight"]
        tensors["transformer.h.2.ln_1.bias"] = torch.zeros(47)
        tensors["transformer.h.3.ln_1.bias"] = torch.zeros(48)

    model = build(from_hf(str(directory)))
    before = [parameter.clone() for parameter in model.parameters()]
    change(directory, damage)
    with pytest.raises(ConfigError) as error:
        load_hf(model, directory)
    assert str(error.value).splitlines()[1:] == [
        "  transformer.h.1.attn.c_attn.weight: absent there, [48, 144] in the model",
        "  transformer.h.2.ln_1.bias: [47] there, [48] in the model",
        "  transformer.h.3.ln_1.bias: [48] there, absent in the model",
    ]
    assert all(map(torch.equal, model.parameters(), before))


WTE = "transformer.wte.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.clear() or t.update(a=torch.zeros(1)), r"  a: \[1\] there[\s\S]*and 29 more$"),
        (lambda t: t.update({"lm_head.weight": t[WTE] + 1}), f"lm_head.weight differs from {WTE}"),
        (lambda t: t.update({WTE: t[WTE].to(torch.int8)}), "wte.weight: numbers of type I8 there"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(directory, load, damage, message):
    change(directory, damage)
    with pytest.raises(ConfigError, match=message):
        load(directory)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"n_head": 6}, "attention.num_heads is 6, in the model 4"),  # which no shape would show
        ({"tie_word_embeddings": False}, r"unembedding.weight is .* tied to embedding.weight"),
    ],
)
def test_a_model_of_other_settings_is_refused(directory, build, changed, line):
    model = build(from_hf(str(directory)))
    configure(directory, **changed)
    with pytest.raises(ConfigError, match=line):
        load_hf(model, directory)


def uneven(cfg: Any) -> None:
    unroll(cfg)
    cfg.model.blocks[1].attention.head_dim = 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (use_alibi, r"Nearest is \w+:\n  \S"),
        (uneven, r"blocks.1.attention.num_heads is 6, there 4"),
    ],
)
def test_a_model_of_another_family_is_refused(directory, build, tmp_path, change, message):
    cfg = from_hf(str(directory))
    change(cfg)
    model = build(cfg)
    with pytest.raises(ConfigError, match=r"config.json is of another model:\n  \S"):
        load_hf(model, directory)
    with pytest.raises(ConfigError, match=rf"no family of the hub[\s\S]* {message}"):
        save_hf(model, tmp_path / "ours", seq_len=24)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "name",
    ["model-00001-of-00002.safetensors", "pytorch_model.bin", "consolidated.00.pth"],
)
def test_weights_without_an_index_are_not_ignored(directory, name):
    """Training would start from random weights, unnoticed."""
    (directory / "model.safetensors").rename(directory / name)
    with pytest.raises(ConfigError, match=r"has neither model.safetensors nor .*index.json"):
        from_hf(str(directory))


def test_weights_come_with_their_own_tokenizer_or_none(directory):
    spec = fdl.build(from_hf(str(directory)).data.corpus.tokenizer)
    assert isinstance(spec, TokenizerFile)
    assert spec.path == str(directory / "tokenizer.json")
    with pytest.raises(DataError, match="Cannot read the tokenizer"):
        spec.build([])


def test_damaged_directories_are_refused(directory, build):
    with torch.device("meta"):
        model = build_graph(bind(from_hf(str(directory))).model)
    for write in (load_hf, functools.partial(save_hf, seq_len=24)):
        with pytest.raises(ConfigError, match="materialize"):
            write(model, directory)
    model = build(from_hf(str(directory)))
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"cannot be read: [\s\S]*incomplete; download it again"):
        load_hf(model, directory)
    (directory / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json cannot be read"):
        from_hf(str(directory))
    with pytest.raises(ConfigError, match=r"no/config.json cannot be read: No such file"):
        from_hf(str(directory / "no"))


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
    known = {"gpt_oss": OSS, "llama": LLAMA}.get(settings.get("model_type", ""), SETTINGS)
    (directory / "config.json").write_text(json.dumps(known | settings))
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    return directory


def saved(build: Callable[..., LanguageModel], path: Path, settings: dict[str, Any]) -> Any:
    """The model of a config.json, written to a directory, and its tensors there."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(settings))
    model = build(from_hf(str(path)))
    (path / "config.json").unlink()
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


def test_eight_bits_with_scales_are_read_as_what_they_stand_for(load, plain, tmp_path):
    coded, meant = in_eight_bits(plain)
    found = load(write(tmp_path / "coded", coded, quantization_config=FP8))
    wanted = load(write(tmp_path / "meant", meant))
    names = {name for name, _ in wanted.named_parameters()}
    assert {"blocks.1.mlp.experts.gate", "blocks.0.attention.kv_down.weight"} <= names
    assert all(map(torch.equal, found.parameters(), wanted.parameters()))


ROWS = {"quant_method": "compressed-tensors", "format": "float-quantized"}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize(
    ("suffix", "by_rows", "how"),
    [
        ("scale_inv", False, {"quant_method": "fp8", "weight_block_size": None}),
        ("scale", True, ROWS),
        ("scale", False, ROWS),
        ("scale", True, {"quant_method": "fbgemm_fp8"}),
    ],
)
def test_eight_bits_with_scales_of_rows_or_matrices_are_read(
    load, plain, tmp_path, dtype, suffix, by_rows, how
):
    """Against a multiplication number by number, by the arithmetic of compressed-tensors."""
    torch.manual_seed(0)
    coded, meant = dict(plain), dict(plain)
    for name in [name for name in plain if "_proj" in name]:
        codes = (torch.randn(plain[name].shape) * 30).to(dtype)
        scales = torch.rand(len(codes) if by_rows else 1, 1) * 0.001
        coded |= {name: codes, f"{name}_{suffix}": scales if by_rows else scales[0, 0]}
        coded[name.replace("weight", "input_scale")] = torch.ones(1)
        meant[name] = torch.stack(
            [
                row.float() * one
                for row, one in zip(codes, scales.expand(len(codes), 1), strict=True)
            ]
        )
    found = load(write(tmp_path / "coded", coded, quantization_config=how))
    wanted = load(write(tmp_path / "meant", meant))
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
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "fp8", "weight_block_size": [64, 128]},
        "gptq",
    ],
)
def test_other_codes_are_refused_with_a_remedy(how: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SETTINGS | {"quantization_config": how}))
    with pytest.raises(ConfigError, match=r"quantization_config is .*blocks of 128.*dequantize"):
        from_hf(str(tmp_path))


LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 97},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2},
    "max_position_embeddings": 16,
}


def packed(codes: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Put the codes of each row into words of 32 bits, number by number."""
    rows, columns = codes.shape
    count = 32 // bits
    words = torch.zeros(rows, columns // count, dtype=torch.int64)
    for place, at in enumerate(order or range(count)):
        words |= codes[:, at::count].long() << (bits * place)
    return words.where(words < 2**31, words - 2**32).int()


def by_groups(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    """Number by number, with the zero and the scale of the group of its column."""
    return (codes.float() - zeros.float()[:, groups]) * scales[:, groups]


PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
GROUPS = {"group_0": {"weights": {"num_bits": 4, "symmetric": False, "group_size": 8}}}
SYMMETRIC = {"group_0": {"weights": {"num_bits": 8, "symmetric": True, "group_size": 8}}}


@pytest.mark.parametrize(
    ("bits", "how"),
    [
        (4, {"quant_method": "gptq", "bits": 4, "desc_act": True}),
        (8, {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}),
        (4, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
        (4, PACKED | {"config_groups": GROUPS}),
        (8, PACKED | {"config_groups": SYMMETRIC}),
    ],
)
def test_codes_in_words_are_read(load, build, tmp_path, bits, how):
    """Against (code - zero) * scale number by number.

    The layouts are those of GPTQModel 7.7.0, AutoAWQ 0.2.9 and compressed-tensors 0.20.1, whose own
    functions gave the same numbers.
    """
    torch.manual_seed(0)
    plain = saved(build, tmp_path / "plain", LLAMA)[1]
    coded, meant = dict(plain), dict(plain)
    method = how.get("format", how["quant_method"])
    for name in [name for name in plain if "_proj" in name]:
        rows, columns = coded.pop(name).shape
        codes = torch.randint(1 << bits, (rows, columns))
        zeros = torch.randint(1, 1 << bits, (rows, columns // 8))
        scales, groups = torch.rand(rows, columns // 8) * 0.01, torch.arange(columns) // 8
        holder = name.removesuffix("weight")
        if method == "gptq":
            groups = groups[torch.randperm(columns)]
            less = int("checkpoint_format" not in how)
            parts = {"qweight": packed(codes, bits).T, "qzeros": packed((zeros - less).T, bits)}
            parts = {**parts, "scales": scales.T, "g_idx": groups.int()}
        elif method == "awq":
            order = (0, 2, 4, 6, 1, 3, 5, 7)
            parts = {"qweight": packed(codes.T, 4, order), "qzeros": packed(zeros.T, 4, order)}
            parts["scales"] = scales.T
        else:
            parts = {"weight_packed": packed(codes, bits), "weight_scale": scales}
            parts["weight_shape"] = torch.tensor([rows, columns])
            if bits == 8:
                zeros = torch.full_like(zeros, 128)
            else:
                parts["weight_zero_point"] = packed(zeros.T, bits).T
        coded |= {f"{holder}{part}": one.contiguous() for part, one in parts.items()}
        meant[name] = by_groups(codes, zeros, scales, groups)
    found, wanted = (
        load(write(tmp_path / name, tensors, model_type="llama", quantization_config=codes))
        for name, tensors, codes in (("coded", coded, how), ("meant", meant, None))
    )
    assert all(map(torch.equal, found.parameters(), wanted.parameters()))


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
