"""Hugging Face directories and models that do not fit each other, with GPT-2 for all families."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import safetensors.torch
import torch
from torch import Tensor

from fidgpt.configs import gpt2_124m
from fidgpt.data import DataError, TokenizerFile
from fidgpt.fiddlers import unroll, use_gqa, use_rms_norm, use_rope, use_swiglu
from fidgpt.graph import ConfigError, bind, fingerprint
from fidgpt.graph import build as build_graph
from fidgpt.interop import from_hf, load_hf, save_hf


def spoil(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Lets `change` mutate the tensors of model.safetensors."""
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def configure(directory: Path, **settings: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_files_of_the_bare_model_and_old_masks_are_read(directory, load):
    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for i in range(3):
            tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
            tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    expected = load(directory)
    spoil(directory, rename)
    assert all(map(torch.equal, load(directory).parameters(), expected.parameters()))


def test_files_of_a_model_that_also_sees_are_read(tmp_path, build, load):
    settings = {"hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(settings | {"model_type": "gemma3_text"}))
    cfg = from_hf(str(tmp_path))
    cfg.vocab_size = 97
    model = build(cfg)
    save_hf(model, tmp_path, seq_len=24)

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)
        tensors["vision_tower.patch.weight"] = torch.ones(3)
        tensors["multi_modal_projector.norm.weight"] = torch.ones(2)

    spoil(tmp_path, rename)
    assert all(map(torch.equal, load(tmp_path).parameters(), model.parameters()))


def test_every_tensor_that_does_not_fit_is_listed_and_nothing_is_loaded(directory, build):
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["transformer.h.1.attn.c_attn.weight"]
        tensors["transformer.h.2.ln_1.bias"] = torch.zeros(47)
        tensors["transformer.h.3.ln_1.bias"] = torch.zeros(48)

    model = build(from_hf(str(directory)))
    before = [parameter.clone() for parameter in model.parameters()]
    spoil(directory, change)
    with pytest.raises(ValueError) as error:
        load_hf(model, directory)
    assert str(error.value).splitlines()[1:] == [
        "  transformer.h.1.attn.c_attn.weight: absent there, [48, 144] in the model",
        "  transformer.h.2.ln_1.bias: [47] there, [48] in the model",
        "  transformer.h.3.ln_1.bias: [48] there, absent in the model",
    ]
    assert all(map(torch.equal, model.parameters(), before))


def test_a_long_list_is_cut(directory, load):
    spoil(directory, lambda tensors: tensors.clear() or tensors.update(a=torch.zeros(1)))
    with pytest.raises(ValueError, match=r"  a: \[1\] there[\s\S]*and 29 more$"):
        load(directory)


def test_a_second_table_that_differs_from_the_tied_one_is_refused(directory, load):
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1

    spoil(directory, change)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from transformer.wte.weight"):
        load(directory)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"n_head": 6}, "n_head is 6, in the model 4"),  # which no shape would tell
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon is 1e-05, in the model 0.0001"),
        ({"n_layer": 2}, "n_layer is 2, in the model 3"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, in the model True"),
    ],
)
def test_other_settings_than_the_models_are_refused(directory, build, changed, line):
    model = build(from_hf(str(directory)))
    configure(directory, **changed)
    with pytest.raises(ValueError, match=line):
        load_hf(model, directory)


@pytest.mark.parametrize(
    "change", [use_rope, use_swiglu, use_gqa, use_rms_norm], ids=lambda change: change.__name__
)
def test_a_model_that_is_no_gpt2_is_refused(directory, build, tmp_path, change):
    cfg = from_hf(str(directory))
    change(cfg)
    model = build(cfg)
    with pytest.raises(ConfigError, match=r"config.json is of another model:\n  \S"):
        load_hf(model, directory)
    with pytest.raises(ConfigError, match=r"no family of the hub[\s\S]* Nearest is \w+:\n  \S"):
        save_hf(model, tmp_path / "ours", seq_len=24)
    assert not (tmp_path / "ours").exists()


def test_layers_must_be_alike(directory, build, tmp_path):
    cfg = from_hf(str(directory))
    unroll(cfg)
    cfg.model.blocks[1].attention.head_dim = 8
    with pytest.raises(ValueError, match=r"blocks.1.attention.num_heads is 6, there 4"):
        save_hf(build(cfg), tmp_path / "ours", seq_len=24)


def test_a_model_without_memory_is_refused(directory, tmp_path):
    with torch.device("meta"):
        model = build_graph(bind(from_hf(str(directory))).model)
    with pytest.raises(ValueError, match="materialize"):
        load_hf(model, directory)
    with pytest.raises(ValueError, match="materialize"):
        save_hf(model, tmp_path / "ours", seq_len=24)


def test_a_published_config_gives_the_named_one(tmp_path):
    published = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_ctx": 1024}
    (tmp_path / "config.json").write_text(json.dumps(published))
    assert fingerprint(from_hf(str(tmp_path))) == fingerprint(gpt2_124m())


@pytest.mark.parametrize(
    "name",
    [
        *("model-00001-of-00002.safetensors", "pytorch_model.bin", "pytorch_model-1-of-2.bin"),
        *("consolidated.safetensors", "consolidated.00.pth", "model-Q4.gguf"),
    ],
)
def test_weights_that_nothing_names_are_not_passed_over(directory, name):
    """Training would begin anew, and nobody would know."""
    (directory / "model.safetensors").rename(directory / name)
    with pytest.raises(ConfigError, match=r"holds neither model.safetensors nor .*index.json"):
        from_hf(str(directory))


def test_weights_do_not_get_a_tokenizer_that_they_do_not_know(directory):
    assert not (directory / "tokenizer.json").exists()
    spec = fdl.build(from_hf(str(directory)).data.corpus.tokenizer)
    assert isinstance(spec, TokenizerFile)
    with pytest.raises(DataError, match="Cannot read the tokenizer"):
        spec.build([])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_weights_in_a_code_are_refused(directory, load, dtype):
    spoil(
        directory,
        lambda t: t.update({"transformer.wpe.weight": t["transformer.wpe.weight"].to(dtype)}),
    )
    with pytest.raises(ConfigError, match=r"wpe.weight: numbers of type (I8|F8_E4M3) there"):
        load(directory)


def test_a_tokenizer_comes_along(directory):
    (directory / "tokenizer.json").write_text("{}")
    spec = fdl.build(from_hf(str(directory)).data.corpus.tokenizer)
    assert isinstance(spec, TokenizerFile)
    assert spec.path == str(directory / "tokenizer.json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gpt3"}, "model_type='gpt3' is not supported"),
        ({"activation_function": "tanh"}, "activation='tanh' is not known"),
        ({"n_embd": 50}, "n_embd=50 must be a multiple of n_head=4"),
        ({"n_layer": 0}, "n_layer=0 must be"),
        ({"n_layer": "3"}, "n_layer='3' must be int"),
    ],
)
def test_a_config_of_something_else_is_refused(directory, changed, message):
    configure(directory, **changed)
    with pytest.raises(ConfigError, match=message):
        from_hf(str(directory))


def test_a_directory_of_something_else_is_refused(directory, build):
    model = build(from_hf(str(directory)))
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"cannot be read: [\s\S]*incomplete: download it again"):
        load_hf(model, directory)
    weights.unlink()
    weights.mkdir()
    with pytest.raises(ConfigError, match=r"model.safetensors cannot be read: Is a directory"):
        load_hf(model, directory)
    weights.rmdir()
    with pytest.raises(ConfigError, match=r"holds neither"):
        load_hf(model, directory)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}')
    with pytest.raises(ConfigError, match=r"index.json cannot be read: it has no weight_map"):
        load_hf(model, directory)
    for text in ("{", "[]", "\xff", "[" * 100_000):
        (directory / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"config.json cannot be read"):
            from_hf(str(directory))
    with pytest.raises(ConfigError, match=r"no/config.json cannot be read: No such file"):
        from_hf(str(directory / "no"))
