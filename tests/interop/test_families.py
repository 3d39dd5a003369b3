"""Every family against transformers, and which family of the hub a model is of."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from small_models import cut
from torch import Tensor, nn

from fidgpt import configs
from fidgpt import model as lm
from fidgpt.fiddlers import unroll, use_expert_capacity, use_gqa, use_lora
from fidgpt.graph import ConfigError, bind, build, find
from fidgpt.interop import from_hf, load_hf, save_hf
from fidgpt.interop.hugging_face.hub import Member, differences, fitting_member
from fidgpt.interop.hugging_face.settings import FAMILIES
from fidgpt.model import AttentionContext, LanguageModel, generation, padded

from .more_recipes import MORE_RECIPES
from .recipes import RECIPES, Recipe

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds

SEQ_LEN = 40


class Pair(NamedTuple):
    """A model of transformers, where it saved itself, and ours made from that."""

    recipe: Recipe
    theirs: Any
    directory: Path
    ours: LanguageModel


class Rows(NamedTuple):
    """A batch as both sides want it; `counts` marks the tokens that are compared."""

    tokens: Tensor
    layout: AttentionContext
    theirs: dict[str, Any]
    counts: Tensor


@pytest.fixture(scope="module", params=RECIPES)
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    load: Callable[[Path], LanguageModel],
) -> Pair:
    recipe = RECIPES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    theirs = random_model(recipe)
    theirs.save_pretrained(directory)
    return Pair(recipe, theirs, directory, load(directory))


def random_model(recipe: Recipe) -> Any:
    """A model in which no vector is at 0 or 1, where a missing one would not show."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(recipe.family, **recipe.settings)
    model = AutoModelForCausalLM.from_config(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.add_(torch.randn_like(buffer), alpha=0.5)
    return model


def packed(recipe: Recipe) -> Rows:
    """Three documents in a row; transformers needs the whole mask to keep them apart."""
    tokens = random_tokens()
    lengths = [11, 22, 7]
    documents = torch.arange(3).repeat_interleave(torch.tensor(lengths)).expand_as(tokens)
    positions = torch.cat([torch.arange(length) for length in lengths]).expand_as(tokens)
    inside = documents[:, :, None] == documents[:, None, :]
    distance = torch.arange(SEQ_LEN)[:, None] - torch.arange(SEQ_LEN)
    full = inside & (distance >= 0)
    near = full & (distance < (recipe.window or SEQ_LEN))
    masks = {"full_attention": additive(full), "sliding_attention": additive(near)}
    mask = masks if recipe.by_kind else masks["sliding_attention"]
    return Rows(
        tokens,
        AttentionContext(positions, documents=documents, tokens=tokens),
        {"attention_mask": mask, "position_ids": positions},
        torch.ones_like(tokens).bool(),
    )


def padded_left(recipe: Recipe) -> Rows:
    """Two rows of different lengths, the shorter one with nothing in front."""
    tokens = random_tokens()
    present = torch.ones_like(tokens)
    present[0, :13] = 0
    positions = (present.cumsum(1) - 1).clamp(min=0)
    return Rows(
        tokens,
        padded(tokens, present=present),
        {"attention_mask": present, "position_ids": positions},
        present.bool(),
    )


def random_tokens() -> Tensor:
    """Without the first ids, whose gradient transformers leaves out where they mean padding."""
    return torch.randint(3, 97, (2, SEQ_LEN), generator=torch.Generator().manual_seed(2))


def additive(allowed: Tensor) -> Tensor:
    least = torch.finfo(torch.float32).min
    return torch.zeros(allowed.shape).masked_fill(~allowed, least).unsqueeze(1)


def loss_of(logits: Tensor, rows: Rows) -> Tensor:
    """Return the loss of the tokens that count, each predicted from one that does."""
    predicted = (rows.counts[:, :-1] & rows.counts[:, 1:]).flatten()
    losses = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), rows.tokens[:, 1:].flatten(), reduction="none"
    )
    return losses[predicted].mean()


@pytest.mark.parametrize("rows_of", [packed, padded_left], ids=["packed", "padded"])
def test_logits_and_gradients_are_those_of_transformers(pair, rows_of, tmp_path):
    rows = rows_of(pair.recipe)
    pair.theirs.zero_grad()
    pair.ours.zero_grad()
    logits = pair.ours(rows.tokens, rows.layout)
    expected = pair.theirs(rows.tokens, use_cache=False, **rows.theirs).logits
    assert (logits - expected)[rows.counts].abs().max() < 1e-5
    loss_of(logits, rows).backward()
    loss_of(expected, rows).backward()
    gradients = gradients_as_weights(pair, tmp_path)
    for name, parameter in pair.ours.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad - gradients[name]).abs().max() < 1e-4, name
        # A softmax does not see what is added to all keys alike: such a bias has only noise.
        scale = gradients[name].norm().clamp(min=1e-3)
        assert (parameter.grad - gradients[name]).norm() < 1e-4 * scale, name


def gradients_as_weights(pair: Pair, directory: Path) -> dict[str, Tensor]:
    """Their gradients under our names: saved as if they were a model's weights, and loaded."""
    model, ours = copy.deepcopy(pair.theirs), copy.deepcopy(pair.ours)
    with torch.no_grad():
        for twin, parameter in zip(model.parameters(), pair.theirs.parameters(), strict=True):
            twin.copy_(torch.zeros_like(twin) if parameter.grad is None else parameter.grad)
    model.save_pretrained(directory)
    load_hf(ours, directory)
    return dict(ours.named_parameters())


def test_weights_come_back_bit_by_bit(pair: Pair, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    seq_len = from_hf(str(pair.directory)).seq_len
    save_hf(pair.ours, tmp_path, seq_len=seq_len, model_type=pair.recipe.family)
    theirs, ours = (tensors_in(path) for path in (pair.directory, tmp_path))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name
    back, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    tokens = random_tokens()
    assert torch.equal(back.eval()(tokens).logits, pair.theirs(tokens).logits)


def test_greedy_text_is_that_of_transformers(pair: Pair):
    """Of prompts of different length, from what is remembered of them."""
    rows = [[5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33]]
    absent = [7 - len(row) for row in rows]
    expected = pair.theirs.generate(
        torch.tensor([[0] * gap + row for gap, row in zip(absent, rows, strict=True)]),
        attention_mask=torch.tensor([[0] * gap + [1] * (7 - gap) for gap in absent]),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    greedy = generation.Sampling(seeds=[0] * len(rows), temperature=0.0, top_k=None)
    steps = generation.write(pair.ours, rows, num_tokens=12, context=48, choose=greedy)
    assert [list(row) for row in zip(*steps, strict=True)] == expected[:, 7:].tolist()


def tensors_in(directory: Path) -> dict[str, Tensor]:
    """Of every file there: what a class of transformers holds may differ from what it saves."""
    found: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def test_every_family_has_a_recipe():
    recipes = [*RECIPES.values(), *MORE_RECIPES.values()]
    # AutoModelForCausalLM knows the text of Emu3 inside of `emu3` alone: see the models of images.
    known = {recipe.family for recipe in recipes} | {"emu3_text_model"}
    assert known == {one.model_type for one in FAMILIES}


def modeled(cfg: fdl.Config) -> lm.LanguageModel:
    with torch.device("meta"):
        return build(bind(cfg).model)


def fitting(cfg: fdl.Config) -> tuple[Member, dict[str, Any]]:
    """The member of a family that the model of a config is, and its config.json."""
    return fitting_member(modeled(cfg), seq_len=cfg.seq_len)


def family(cfg: fdl.Config) -> str:
    return fitting(cfg)[0].family.model_type


class Mine(nn.Module):
    """An attention without the attributes of fidgpt's own."""

    def forward(self, x: Tensor, layout: lm.AttentionContext | None = None) -> Tensor:
        return x


@pytest.mark.slow
def test_a_module_of_the_users_own_is_named_by_its_path():
    cfg = configs.qwen3_0_6b()
    unroll(cfg, every=2)
    cfg.model.blocks[1].attention = fdl.ArgFactory(Mine)
    cfg.model.num_layers = 4
    with pytest.raises(ConfigError) as error:
        fitting(cfg)
    assert str(error.value).splitlines()[0].endswith("Nearest is Qwen3ForCausalLM:")
    lines = [f"  blocks.{layer}.attention is Mine, there Attention" for layer in (1, 3)]
    assert str(error.value).splitlines()[1:] == lines


# One of each family, and those of its sizes that differ in more than numbers.
NAMED = (
    *("base", "gpt2_124m", "llama3_2_1b", "llama3_1_8b", "mistral_7b", "mixtral_8x7b"),
    *("qwen2_5_0_5b", "qwen2_5_7b", "qwen3_0_6b", "qwen3_30b_a3b", "gemma2_2b", "gemma3_270m"),
    *("gemma3_4b", "deepseek_v2_lite", "deepseek_v3", "olmo2_1b", "smollm3_3b", "gpt_oss_20b"),
    *("phi3_3_8b", "pythia_70m", "granite3_2b", "olmoe_1b_7b", "command_r", "falcon_40b"),
)

# Transformers has no class for the one, and rotates whole heads in that of the other.
_ALONE = {"nanochat", "minimax_01"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_whole"),
    [
        *((name, False) for name in NAMED),
        *(
            pytest.param(name, True, marks=pytest.mark.long)
            for name in sorted({*configs.__all__} - _ALONE)
        ),
    ],
)
def test_every_named_config_can_be_written_for_transformers(name: str, is_whole: bool):
    cfg = getattr(configs, name)()
    if not is_whole:
        cut(cfg)
    member, keys = fitting(cfg)
    assert not differences(modeled(cfg), member.built())
    assert member.settings["hidden_dim"] in keys.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("base", unroll, "llama"),
        ("base", use_gqa, "llama"),
        ("base", use_lora, "llama"),
        ("mixtral_8x7b", use_lora, "mixtral"),
        ("mixtral_8x7b", use_expert_capacity, "mixtral"),
    ],
)
def test_how_a_graph_is_written_or_trained_does_not_matter(name: str, change: Any, expected: str):
    cfg = getattr(configs, name)()
    change(cfg)
    assert family(cfg) == expected


@pytest.mark.slow
def test_values_without_a_key_are_named():
    cfg = configs.base()
    for block in find(cfg.model, lm.Block):
        block.mlp_norm.eps = 0.5
    named = r"Nearest is LlamaForCausalLM:\n  blocks\.\*\.mlp_norm\.eps is 0\.5, there 1e-05$"
    with pytest.raises(ConfigError, match=named):
        fitting(cfg)


def test_uneven_heads_are_written_for_a_class_that_takes_them():
    cfg = configs.base()
    cfg.model.blocks[0].attention.num_heads = 3
    assert family(cfg) == "mistral"


def test_scaling_is_compared_by_what_it_holds():
    cfg = configs.base()
    rope = cfg.model.blocks[0].attention.rope
    rope.scaling = fdl.Config(lm.LinearScaling, factor=2.0)
    assert fitting(cfg)[1]["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    rope.scaling = fdl.Config(lm.NTKScaling, factor=2.0)
    with pytest.raises(ConfigError, match="no form for the RoPE scaling NTKScaling"):
        fitting(cfg)
