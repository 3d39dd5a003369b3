"""Which family of the hub a model is of, found by what it computes."""

import functools
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn

from fidgpt import configs
from fidgpt import model as lm
from fidgpt.fiddlers import unroll, use_alibi, use_expert_capacity, use_gqa, use_lora
from fidgpt.graph import ConfigError, bind, build, find
from fidgpt.interop.hugging_face.hub import Member, differences, fitting_member


def modeled(cfg: fdl.Config) -> lm.LanguageModel:
    with torch.device("meta"):
        return build(bind(cfg).model)


def fitting(cfg: fdl.Config) -> tuple[Member, dict[str, Any]]:
    """The member of a family that the model of a config is, and its config.json."""
    return fitting_member(modeled(cfg), seq_len=cfg.seq_len)


def family(cfg: fdl.Config) -> str:
    return fitting(cfg)[0].family.model_type


def misfit(cfg: fdl.Config) -> list[str]:
    """The lines of the error for a model that is of no family."""
    with pytest.raises(ConfigError, match="no family of the hub") as error:
        fitting(cfg)
    first, *lines = str(error.value).splitlines()
    assert first.endswith("Nearest is LlamaForCausalLM:")
    return [line.strip() for line in lines]


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
)
REST = [name for name in configs.__all__ if name not in NAMED]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*NAMED, *(pytest.param(name, marks=pytest.mark.long) for name in REST)]
)
def test_every_named_config_can_be_written_for_transformers(name: str):
    cfg = getattr(configs, name)()
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


def test_what_is_for_training_alone_does_not_matter():
    cfg = configs.base()
    cfg.model.dropout = 0.1
    for attention in find(cfg.model, lm.Attention):
        attention.kernel = lm.sdpa
    cfg.model.blocks[0].attention.init.std = 0.5
    assert family(cfg) == "llama"


@pytest.mark.slow
def test_values_without_a_key_are_named():
    cfg = configs.base()
    for block in find(cfg.model, lm.Block):
        block.branch_scale = 0.5
        block.attention.scale = 0.25
    assert misfit(cfg) == [
        "blocks.*.branch_scale is 0.5, there 1.0",
        "blocks.*.attention.scale is 0.25, there 0.125",
    ]


@pytest.mark.slow
def test_a_single_layer_that_differs_is_named():
    cfg = configs.base()
    unroll(cfg)
    cfg.model.blocks[2].attention.bias = True
    lines = misfit(cfg)
    assert "blocks.2.attention.query.bias is [256], there absent" in lines
    assert all(line.startswith("blocks.2.attention.") for line in lines)


@pytest.mark.slow
def test_components_of_no_family_are_refused():
    cfg = configs.base()
    use_alibi(cfg)
    with pytest.raises(ConfigError, match="no family of the hub"):
        fitting(cfg)


def test_uneven_heads_are_written_for_a_class_that_takes_them():
    cfg = configs.base()
    cfg.model.blocks[0].attention.num_heads = 3
    assert family(cfg) == "mistral"


@pytest.mark.slow
def test_uneven_heads_are_refused_where_no_class_takes_them():
    cfg = configs.gemma2_2b()
    for attention in find(cfg.model, lm.Attention):
        attention.num_heads = 20
    with pytest.raises(ConfigError, match="width=2304 is not a multiple of heads=20"):
        fitting(cfg)


class Doubled(lm.SwiGLU):
    """Computes something else under the same names."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.slow
def test_a_subclass_is_another_class():
    cfg = configs.base()
    cfg.model.blocks[0].mlp = fdl.ArgFactory(Doubled, hidden_dim=256, ffn_dim=704)
    assert misfit(cfg) == ["blocks.*.mlp is Doubled, there SwiGLU"]


def test_scaling_is_compared_by_what_it_holds():
    cfg = configs.base()
    rope = cfg.model.blocks[0].attention.rope
    rope.scaling = fdl.Config(lm.LinearScaling, factor=2.0)
    assert fitting(cfg)[1]["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    rope.scaling = fdl.Config(lm.NTKScaling, factor=2.0)
    with pytest.raises(ConfigError, match="no form for the RoPE scaling NTKScaling"):
        fitting(cfg)


def test_partials_are_compared_by_what_they_call():
    def model(factor: float) -> torch.nn.Module:
        module = torch.nn.Identity()
        vars(module)["made"] = functools.partial(lm.LinearScaling, factor=factor)
        return module

    assert not differences(model(2.0), model(2.0))
    (found,) = differences(model(2.0), model(3.0))
    assert found.path == "made"
