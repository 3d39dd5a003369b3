"""GPT-2 against Hugging Face's transformers: the same numbers, and weights in and out unchanged."""

import copy
import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.cli.runs import build_trainer
from fidgpt.configs import gpt2_124m
from fidgpt.data import TokenizerFile
from fidgpt.fiddlers import unroll, use_gqa, use_rms_norm, use_rope, use_swiglu
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.interop import gpt2_from_hf, load_gpt2, save_gpt2
from fidgpt.model import Transformer, materialize, sdpa

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds

CPU = torch.device("cpu")
SIZES = {"vocab_size": 300, "n_positions": 24, "n_embd": 48, "n_layer": 3, "n_head": 4}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A GPT2LMHeadModel in which no parameter is at 0 or 1."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        **SIZES, n_inner=100, layer_norm_epsilon=1e-4, bos_token_id=None, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval()
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


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy of that directory, to spoil."""
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def built(cfg: fdl.Config) -> Transformer:
    for block in cfg.model.blocks:
        block.attention.kernel = sdpa
    model = build_trainer(cfg).model
    assert isinstance(model, Transformer)
    materialize(model, device=CPU, seed=0)
    return model.eval()


def loaded(directory: Path) -> Transformer:
    model = built(gpt2_from_hf(directory))
    load_gpt2(model, directory)
    return model


def spoil(directory: Path, change) -> None:
    """Lets `change` mutate the tensors of model.safetensors."""
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def configure(directory: Path, **settings: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def in_our_names(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, each under the name of our parameter; a Conv1D is transposed and cut."""
    ours = {
        "embedding.weight": values["transformer.wte.weight"],
        "embedding.positions.weight": values["transformer.wpe.weight"],
        "norm.weight": values["transformer.ln_f.weight"],
        "norm.bias": values["transformer.ln_f.bias"],
    }
    for i in range(SIZES["n_layer"]):
        for kind in ("weight", "bias"):
            get = lambda name: values[f"transformer.h.{i}.{name}.{kind}"].t()  # noqa: B023, E731
            query, key, value = get("attn.c_attn").chunk(3)
            ours |= {
                f"blocks.{i}.{name}.{kind}": tensor
                for name, tensor in {
                    "attention_norm": get("ln_1"),
                    "attention.query": query,
                    "attention.key": key,
                    "attention.value": value,
                    "attention.out": get("attn.c_proj"),
                    "mlp_norm": get("ln_2"),
                    "mlp.up": get("mlp.c_fc"),
                    "mlp.down": get("mlp.c_proj"),
                }.items()
            }
    return ours


def test_logits_and_gradients_are_those_of_transformers(theirs, saved):
    model = loaded(saved)
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


def test_weights_come_back_bit_by_bit(theirs, saved, tmp_path):
    from transformers import GPT2LMHeadModel

    model = loaded(saved)
    ours = in_our_names(dict(theirs.named_parameters()))
    assert all(torch.equal(p, ours[name]) for name, p in model.named_parameters())
    assert model.unembedding.weight is model.embedding.weight
    save_gpt2(model, tmp_path / "new" / "ours")
    back, report = GPT2LMHeadModel.from_pretrained(
        tmp_path / "new" / "ours", output_loading_info=True
    )
    assert not any(report.values())
    expected = dict(theirs.named_parameters())
    assert all(torch.equal(p, expected[name]) for name, p in back.named_parameters())
    assert back.lm_head.weight is back.transformer.wte.weight
    for key in (*SIZES, "n_inner", "layer_norm_epsilon", "activation_function", "eos_token_id"):
        assert getattr(back.config, key) == getattr(theirs.config, key)
    assert back.config.resid_pdrop == back.config.embd_pdrop == back.config.attn_pdrop == 0
    assert sorted(p.name for p in (tmp_path / "new" / "ours").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_an_untied_head_is_a_tensor_of_its_own(theirs, tmp_path):
    from transformers import GPT2LMHeadModel

    config = copy.deepcopy(theirs.config)
    config.tie_word_embeddings = False
    untied = GPT2LMHeadModel(config).eval()
    untied.save_pretrained(tmp_path / "theirs")
    model = loaded(tmp_path / "theirs")
    tokens = torch.arange(24)[None]
    torch.testing.assert_close(model(tokens), untied(tokens).logits, atol=1e-5, rtol=1e-5)
    save_gpt2(model, tmp_path / "ours")
    back = GPT2LMHeadModel.from_pretrained(tmp_path / "ours")
    assert torch.equal(back.lm_head.weight, untied.lm_head.weight)
    assert torch.equal(back.transformer.wte.weight, untied.transformer.wte.weight)


def test_shards_are_read_by_their_index(theirs, saved, tmp_path):
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    expected = loaded(saved)
    assert all(map(torch.equal, loaded(tmp_path).parameters(), expected.parameters()))
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(ConfigError, match=r"model-00002\S+ cannot be read: No such file"):
        load_gpt2(expected, tmp_path)


def test_files_of_the_bare_model_and_old_masks_are_read(saved, directory):
    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for i in range(SIZES["n_layer"]):
            tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
            tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    spoil(directory, rename)
    assert all(map(torch.equal, loaded(directory).parameters(), loaded(saved).parameters()))


def test_every_tensor_that_does_not_fit_is_listed_and_nothing_is_loaded(directory):
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["transformer.h.1.attn.c_attn.weight"]
        tensors["transformer.h.2.ln_1.bias"] = torch.zeros(47)
        tensors["transformer.h.3.ln_1.bias"] = torch.zeros(48)

    model = built(gpt2_from_hf(directory))
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


def test_a_long_list_is_cut(directory):
    spoil(directory, lambda tensors: tensors.clear() or tensors.update(a=torch.zeros(1)))
    with pytest.raises(ValueError, match=r"  a: \[1\] there[\s\S]*and 29 more$"):
        loaded(directory)


def test_a_second_table_that_differs_from_the_tied_one_is_refused(directory):
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1

    spoil(directory, change)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from wte.weight"):
        loaded(directory)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"n_head": 6}, "n_head is 6, in the model 4"),  # which no shape would tell
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon is 1e-05, in the model 0.0001"),
        ({"n_layer": 2}, "n_layer is 2, in the model 3"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, in the model True"),
    ],
)
def test_other_settings_than_the_models_are_refused(directory, settings, line):
    model = built(gpt2_from_hf(directory))
    configure(directory, **settings)
    with pytest.raises(ValueError, match=line):
        load_gpt2(model, directory)


@pytest.mark.parametrize(
    "change", [use_rope, use_swiglu, use_gqa, use_rms_norm], ids=lambda change: change.__name__
)
def test_a_model_that_is_no_gpt2_is_refused(saved, tmp_path, change):
    cfg = gpt2_from_hf(saved)
    change(cfg)
    model = built(cfg)
    for move in (lambda: load_gpt2(model, saved), lambda: save_gpt2(model, tmp_path / "ours")):
        with pytest.raises(ValueError, match="GPT-2"):
            move()
    assert not (tmp_path / "ours").exists()


def test_layers_must_be_alike(saved, tmp_path):
    cfg = gpt2_from_hf(saved)
    unroll(cfg)
    cfg.model.blocks[1].attention.head_dim = 8
    with pytest.raises(ValueError, match=r"layers differ in num_heads \({4, 6}\)"):
        save_gpt2(built(cfg), tmp_path / "ours")


def test_a_model_without_memory_is_refused(saved, tmp_path):
    model = build_trainer(gpt2_from_hf(saved)).model
    assert isinstance(model, Transformer)
    with pytest.raises(ValueError, match="materialize"):
        load_gpt2(model, saved)
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
    ("settings", "message"),
    [
        ({"model_type": "llama"}, "model_type='llama'; gpt2 is needed"),
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"n_embd": 50}, "n_embd=50 is no whole number of n_head=4 heads"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"n_layer": "3"}, "n_layer is '3'"),
    ],
)
def test_a_config_of_something_else_is_refused(directory, settings, message):
    configure(directory, **settings)
    with pytest.raises(ConfigError, match=message):
        gpt2_from_hf(directory)


def test_a_directory_of_something_else_is_refused(directory, saved):
    model = built(gpt2_from_hf(saved))
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"model.safetensors cannot be read: "):
        load_gpt2(model, directory)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"holds no model.safetensors"):
        load_gpt2(model, directory)
    for text in ("{", "[]", "\xff"):
        (directory / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"config.json cannot be read"):
            gpt2_from_hf(directory)
    with pytest.raises(ConfigError, match=r"no/config.json cannot be read: No such file"):
        gpt2_from_hf(directory / "no")
