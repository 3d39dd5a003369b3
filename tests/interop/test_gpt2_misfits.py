"""Hugging Face directories and models that do not fit each other, and configs made from them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import safetensors.torch
import torch
from torch import Tensor

from fidgpt.cli.runs import build_trainer
from fidgpt.configs import gpt2_124m
from fidgpt.data import TokenizerFile
from fidgpt.fiddlers import unroll, use_gqa, use_rms_norm, use_rope, use_swiglu
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.interop import gpt2_from_hf, load_gpt2, save_gpt2
from fidgpt.model import Transformer


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


def test_every_tensor_that_does_not_fit_is_listed_and_nothing_is_loaded(directory, build):
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["transformer.h.1.attn.c_attn.weight"]
        tensors["transformer.h.2.ln_1.bias"] = torch.zeros(47)
        tensors["transformer.h.3.ln_1.bias"] = torch.zeros(48)

    model = build(gpt2_from_hf(directory))
    before = [parameter.clone() for parameter in model.parameters()]
    spoil(directory, change)
    with pytest.raises(ValueError) as error:
        load_gpt2(model, directory)
    assert str(error.value).splitlines()[1:] == [
        "  h.1.attn.c_attn.weight: absent there, [48, 144] in the model",
        "  h.2.ln_1.bias: [47] there, [48] in the model",
        "  h.3.ln_1.bias: [48] there, absent in the model",
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
    with pytest.raises(ValueError, match=r"lm_head.weight differs from wte.weight"):
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
    model = build(gpt2_from_hf(directory))
    configure(directory, **changed)
    with pytest.raises(ValueError, match=line):
        load_gpt2(model, directory)


@pytest.mark.parametrize(
    "change", [use_rope, use_swiglu, use_gqa, use_rms_norm], ids=lambda change: change.__name__
)
def test_a_model_that_is_no_gpt2_is_refused(directory, build, tmp_path, change):
    cfg = gpt2_from_hf(directory)
    change(cfg)
    model = build(cfg)
    for move in (lambda: load_gpt2(model, directory), lambda: save_gpt2(model, tmp_path / "ours")):
        with pytest.raises(ValueError, match="GPT-2"):
            move()
    assert not (tmp_path / "ours").exists()


def test_layers_must_be_alike(directory, build, tmp_path):
    cfg = gpt2_from_hf(directory)
    unroll(cfg)
    cfg.model.blocks[1].attention.head_dim = 8
    with pytest.raises(ValueError, match=r"layers differ in num_heads \({4, 6}\)"):
        save_gpt2(build(cfg), tmp_path / "ours")


def test_a_model_without_memory_is_refused(directory, tmp_path):
    model = build_trainer(gpt2_from_hf(directory)).model
    assert isinstance(model, Transformer)
    with pytest.raises(ValueError, match="materialize"):
        load_gpt2(model, directory)
    with pytest.raises(ValueError, match="materialize"):
        save_gpt2(model, tmp_path / "ours")


def test_a_published_config_gives_the_named_one(tmp_path):
    published = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_ctx": 1024}
    (tmp_path / "config.json").write_text(json.dumps(published))
    assert fingerprint(gpt2_from_hf(tmp_path)) == fingerprint(gpt2_124m())


def test_a_tokenizer_comes_along(directory):
    (directory / "tokenizer.json").write_text("{}")
    spec = fdl.build(gpt2_from_hf(directory).data.corpus.tokenizer)
    assert isinstance(spec, TokenizerFile)
    assert spec.path == str(directory / "tokenizer.json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "llama"}, "model_type='llama'; gpt2 is needed"),
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"n_embd": 50}, "n_embd=50 is no whole number of n_head=4 heads"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"n_layer": "3"}, "n_layer is '3'"),
    ],
)
def test_a_config_of_something_else_is_refused(directory, changed, message):
    configure(directory, **changed)
    with pytest.raises(ConfigError, match=message):
        gpt2_from_hf(directory)


def test_a_directory_of_something_else_is_refused(directory, build):
    model = build(gpt2_from_hf(directory))
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"model.safetensors cannot be read: "):
        load_gpt2(model, directory)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"holds no model.safetensors"):
        load_gpt2(model, directory)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}')
    with pytest.raises(ConfigError, match=r"index.json cannot be read: it holds no weight_map"):
        load_gpt2(model, directory)
    for text in ("{", "[]", "\xff"):
        (directory / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"config.json cannot be read"):
            gpt2_from_hf(directory)
    with pytest.raises(ConfigError, match=r"no/config.json cannot be read: No such file"):
        gpt2_from_hf(directory / "no")
