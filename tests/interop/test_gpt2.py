"""GPT-2 against Hugging Face's transformers: the same numbers, and weights in and out unchanged."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.graph import ConfigError
from fidgpt.interop import load_hf, save_hf

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds


@pytest.fixture(scope="module")
def theirs(settings: dict[str, Any]) -> Any:
    """A GPT2LMHeadModel in which no parameter is at 0 or 1."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**settings)).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return model


@pytest.fixture(scope="module")
def saved(theirs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where transformers saved it."""
    directory = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(directory)
    return directory


def in_our_names(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, each under the name of our parameter; a Conv1D is transposed and cut."""
    ours = {
        "embedding.weight": values["transformer.wte.weight"],
        "embedding.positions.weight": values["transformer.wpe.weight"],
        "norm.weight": values["transformer.ln_f.weight"],
        "norm.bias": values["transformer.ln_f.bias"],
    }
    for i in range(3):
        for kind in ("weight", "bias"):
            theirs = {
                name: values[f"transformer.h.{i}.{name}.{kind}"].t()
                for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
            }
            query, key, value = theirs["attn.c_attn"].chunk(3)
            ours |= {
                f"blocks.{i}.attention_norm.{kind}": theirs["ln_1"],
                f"blocks.{i}.attention.query.{kind}": query,
                f"blocks.{i}.attention.key.{kind}": key,
                f"blocks.{i}.attention.value.{kind}": value,
                f"blocks.{i}.attention.out.{kind}": theirs["attn.c_proj"],
                f"blocks.{i}.mlp_norm.{kind}": theirs["ln_2"],
                f"blocks.{i}.mlp.up.{kind}": theirs["mlp.c_fc"],
                f"blocks.{i}.mlp.down.{kind}": theirs["mlp.c_proj"],
            }
    return ours


def test_logits_and_gradients_are_those_of_transformers(theirs, saved, load):
    model = load(saved)
    tokens = torch.randint(0, 300, (3, 24), generator=torch.Generator().manual_seed(1))
    logits, expected = model(tokens), theirs(tokens).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    for scores in (logits, expected):
        F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    gradients = in_our_names({name: p.grad for name, p in theirs.named_parameters()})
    theirs.zero_grad()
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        # A softmax does not see what is added to all keys alike: a bias of keys has only noise.
        scale = 1.0 if name.endswith("key.bias") else gradients[name].norm()
        assert (parameter.grad - gradients[name]).norm() < 1e-4 * scale, name


def test_weights_come_back_bit_by_bit(theirs, saved, settings, load, tmp_path):
    from transformers import GPT2LMHeadModel

    model = load(saved)
    ours = in_our_names(dict(theirs.named_parameters()))
    assert all(torch.equal(p, ours[name]) for name, p in model.named_parameters())
    assert model.unembedding.weight is model.embedding.weight
    save_hf(model, tmp_path / "new" / "ours", seq_len=24)
    back, report = GPT2LMHeadModel.from_pretrained(
        tmp_path / "new" / "ours", output_loading_info=True
    )
    assert not any(report.values())
    expected = dict(theirs.named_parameters())
    assert all(torch.equal(p, expected[name]) for name, p in back.named_parameters())
    assert back.lm_head.weight is back.transformer.wte.weight
    for key in (*settings, "activation_function"):
        assert getattr(back.config, key) == getattr(theirs.config, key)
    assert back.config.resid_pdrop == back.config.embd_pdrop == back.config.attn_pdrop == 0


def test_the_files_are_like_those_of_transformers(saved, load, tmp_path):
    save_hf(load(saved), tmp_path, seq_len=24)
    settings, weights = sorted(tmp_path.iterdir())
    assert (settings.name, weights.name) == ("config.json", "model.safetensors")
    assert settings.stat().st_mode == weights.stat().st_mode
    theirs = safetensors.torch.load_file(saved / weights.name)
    ours = safetensors.torch.load_file(weights)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_an_untied_head_is_a_tensor_of_its_own(theirs, load, tmp_path):
    from transformers import GPT2LMHeadModel

    config = copy.deepcopy(theirs.config)
    config.tie_word_embeddings = False
    untied = GPT2LMHeadModel(config).eval()
    untied.save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    tokens = torch.arange(24)[None]
    torch.testing.assert_close(model(tokens), untied(tokens).logits, atol=1e-5, rtol=1e-5)
    save_hf(model, tmp_path / "ours", seq_len=24)
    back = GPT2LMHeadModel.from_pretrained(tmp_path / "ours")
    assert torch.equal(back.lm_head.weight, untied.lm_head.weight)
    assert torch.equal(back.transformer.wte.weight, untied.transformer.wte.weight)


def test_shards_are_read_by_their_index(theirs, saved, load, tmp_path):
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    expected = load(saved)
    assert all(map(torch.equal, load(tmp_path).parameters(), expected.parameters()))
    index = tmp_path / "model.safetensors.index.json"
    named = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": named["weight_map"] | {"lost": "model-00001"}}))
    with pytest.raises(ConfigError, match=r"model-00001 cannot be read: No such file"):
        load_hf(expected, tmp_path)
    shard = named["weight_map"]["transformer.wte.weight"]
    index.write_text(json.dumps({"weight_map": named["weight_map"] | {"lost": shard}}))
    with pytest.raises(ConfigError, match=r"index.json names 1 tensors [\s\S]*, such as lost: "):
        load_hf(expected, tmp_path)
    index.write_text(json.dumps(named))
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(ConfigError, match=r"model-00002\S+ cannot be read: No such file"):
        load_hf(expected, tmp_path)
