"""Families that are tables over parts of others: one model of each, from loading to saving."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt import model as lm
from fidgpt.interop import from_hf, save_hf
from fidgpt.interop.hugging_face.hub import member_in
from fidgpt.model import LanguageModel, generation

from .more_recipes import MORE_RECIPES, ROTATED, like_llama
from .recipes import settings
from .test_families import Pair, random_model, random_tokens

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]

_WRITTEN_AS = {  # of which transformers has a class of another name, or fidgpt an equal family
    "gpt-sw3": "gpt2",
    "kimi_k2": "deepseek_v3",
}


# One of each kind of table; the rest are trained and write text in `make test-long`.
_TRAINED = (
    *("vaultgemma", "exaone_moe", "glm4_moe_lite", "minimax_m2", "qwen2_moe", "bloom"),
    *("qwen3_next", "lfm2", "granitemoehybrid", "kimi_linear", "minimax"),
    *("llama4_text", "apertus", "phimoe", "nemotron_h", "openai-gpt", "modernbert-decoder"),
    *("falcon_h1", "deepseek_v32", "glm_moe_dsa"),
)


ALL = MORE_RECIPES | ROTATED


@pytest.fixture(scope="module", params=ALL)
def family(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    load: Callable[[Path], LanguageModel],
) -> Pair:
    recipe = ALL[request.param]
    directory = tmp_path_factory.mktemp(recipe.family)
    kind = _WRITTEN_AS.get(recipe.family, recipe.family)
    theirs = random_model(recipe._replace(family=kind))
    theirs.save_pretrained(directory)
    _rename(directory, kind, recipe.family)
    return Pair(recipe, theirs, directory, load(directory))


def _rename(directory: Path, kind: str, other: str) -> None:
    config = directory / "config.json"
    config.write_text(config.read_text().replace(f'"{kind}"', f'"{other}"'))


def test_a_family_is_that_of_transformers(family: Pair, tmp_path: Path):
    """Its logits, and those of the weights that it saves."""
    from transformers import AutoModelForCausalLM

    tokens = random_tokens()
    logits = family.ours(tokens)
    assert (logits - family.theirs(tokens, use_cache=False).logits).abs().max() < 5e-5
    kind = family.recipe.family
    seq_len = from_hf(str(family.directory)).seq_len
    save_hf(family.ours, tmp_path, seq_len=seq_len, model_type=kind)
    _rename(tmp_path, kind, _WRITTEN_AS.get(kind, kind))
    back = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (back(tokens, use_cache=False).logits - logits).abs().max() < 5e-5


@pytest.mark.parametrize(
    "name",
    [
        *("exaone_moe", "granitemoe", "ernie4_5_moe", "aria_text", "flint", "phimoe"),
        *("hy_v3", "kolibri1", "axk1", "laguna", "nemotron_h", "kimi_linear"),
    ],
)
def test_tensors_are_read_by_the_names_of_transformers_five(
    name: str, load: Callable[[Path], LanguageModel], tmp_path: Path
):
    """As `save_original_format=False` writes them, experts in one tensor too."""
    recipe = MORE_RECIPES[name]
    kind = _WRITTEN_AS.get(recipe.family, recipe.family)
    theirs, models = random_model(recipe._replace(family=kind)), []
    for original in (True, False):
        theirs.save_pretrained(tmp_path / str(original), save_original_format=original)
        _rename(tmp_path / str(original), kind, recipe.family)
        models.append(load(tmp_path / str(original)))
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


@pytest.mark.parametrize(
    "family",
    [one if one in _TRAINED else pytest.param(one, marks=pytest.mark.long) for one in MORE_RECIPES],
    indirect=True,
)
def test_a_family_trains_and_writes_as_in_transformers(family: Pair):
    """Three steps of training, and the greedy text after them."""
    tokens = random_tokens()
    losses = [_trained(model, tokens) for model in (family.ours, _Logits(family.theirs))]
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    assert losses[0][2] < losses[0][0]
    prompt = [[5, 6, 7, 8, 9, 10, 11]]
    expected = family.theirs.generate(
        torch.tensor(prompt), max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    greedy = generation.Sampling(seeds=[0], temperature=0.0, top_k=None)
    written = generation.write(family.ours, prompt, num_tokens=8, context=48, choose=greedy)
    assert [token for (token,) in written] == expected[0, 7:].tolist()


class _Logits(torch.nn.Module):
    """A model of transformers that returns logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False).logits


def _trained(model: torch.nn.Module, tokens: Tensor) -> list[float]:
    """Return the loss of each of three steps, without dropout."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses: list[float] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


_VISION = "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16"
_WITH_IMAGES = {  # the text of each, and the other halves
    "gemma3": ("head_dim: 16, sliding_window: 5", {"vision_config": _VISION}),
    "fuyu": ("num_key_value_heads: 4", {}),
    "emu3": ("pad_token_id: 0", {"vq_config": ""}),
    "got_ocr2": ("model_type: qwen2", {"vision_config": f"{_VISION}, output_channels: 16"}),
    "phi4_multimodal": (
        "",
        {
            "vision_config": f"{_VISION}, num_hidden_layers: 2, image_token_id: 90",
            "audio_config": "hidden_size: 16, num_blocks: 1, num_attention_heads: 2, "
            "intermediate_size: 16, audio_token_id: 91",
        },
    ),
}


@pytest.mark.parametrize("kind", _WITH_IMAGES)
@torch.no_grad()
def test_the_text_of_a_model_of_images_is_that_of_transformers(
    kind: str, tmp_path: Path, load: Callable[[Path], LanguageModel]
):
    from transformers import AutoConfig, AutoModelForCausalLM

    more, others = _WITH_IMAGES[kind]
    text = like_llama("llama").settings | settings(more)
    config: dict[str, Any] = text if kind == "phi4_multimodal" else {"text_config": text}
    config |= {name: settings(one) for name, one in others.items()}
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config)).eval()
    theirs.save_pretrained(tmp_path)
    tokens = random_tokens()
    expected = theirs(input_ids=tokens, use_cache=False).logits
    ours = load(tmp_path)
    assert (ours(tokens) - expected).abs().max() < 5e-5
    save_hf(ours, tmp_path / "text", seq_len=64, source=tmp_path)
    text = AutoModelForCausalLM.from_pretrained(tmp_path / "text").eval()
    assert (text(tokens, use_cache=False).logits - expected).abs().max() < 5e-5


_SIZES = {"hidden_size": 64, "vocab_size": 97, "num_attention_heads": 4, "num_key_value_heads": 2}
_SIZES |= {"intermediate_size": 100, "max_position_embeddings": 64}
_STATES = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 12, "n_groups": 2}
_ALPHA = {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0}


@pytest.mark.parametrize(
    ("keys", "read", "expected"),
    [
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M-*", **_STATES},
            lambda block: [type(block.attention), type(block.mlp)],
            [[lm.Mamba2, lm.NoMLP], [lm.NoMixer, lm.SquaredReLU], [lm.Attention, lm.NoMLP]],
        ),
        (
            {
                **{"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]},
                **{"mamba_n_heads": 8, "mamba_d_head": 16, "num_hidden_layers": 2},
                "shared_intermediate_size": 56,
            },
            lambda block: type(block.attention),
            [lm.Mamba2, lm.Attention],
        ),
        (
            {
                **{"model_type": "llama4_text", "no_rope_layers": [], "num_hidden_layers": 4},
                **{"interleave_moe_layer_step": 2, "intermediate_size_mlp": 120, "head_dim": 16},
            },
            lambda block: [type(block.attention.rope), type(block.mlp)],
            [[lm.RoPE, lm.SwiGLU], [lm.RoPE, lm.MoE], [lm.RoPE, lm.SwiGLU], [lm.Tempered, lm.MoE]],
        ),
        (
            {
                **{"model_type": "hunyuan_v1_moe", "num_hidden_layers": 1, "moe_topk": [2]},
                **{"num_experts": 4, "rope_scaling": {"type": "dynamic", **_ALPHA}},
            },
            lambda block: [type(block.attention.rope.scaling), block.mlp.router.top_k],
            [[lm.NTKScaling, 2]],
        ),
        (
            {
                **{"model_type": "modernbert-decoder", "num_hidden_layers": 2},
                **{"global_rope_theta": 9e4, "local_rope_theta": 5e3, "local_attention": 16},
            },
            lambda block: [block.attention.window, block.attention.rope.theta],
            [[None, 9e4], [8, 5e3]],
        ),
    ],
    ids=["nemotron_h", "granite4", "llama4", "hunyuan", "modernbert"],
)
def test_files_of_the_hub_are_read_in_their_own_forms(
    hub: Callable[..., Path], keys: dict[str, Any], read: Callable[[Any], Any], expected: list[Any]
):
    blocks = member_in(hub(**_SIZES, **keys)).built()
    assert [read(block) for block in getattr(blocks, "blocks")] == expected  # noqa: B009
