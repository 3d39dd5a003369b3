"""The families of models: what their layers look like, and how much it took to write them down."""

import ast
import importlib
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import configs
from fidgpt.configs.deepseek2 import v2
from fidgpt.configs.qwen3_moe import qwen3_moe
from fidgpt.configs.windows import shortest_period, windows_of
from fidgpt.fiddlers import make_small, use_gqa, use_moe, use_swiglu
from fidgpt.graph import bind
from fidgpt.model import MoE, RoPE, swiglu
from fidgpt.model.positions import LinearScaling

ROOT = Path(configs.__file__).parent
FILES = {
    name: [
        fn.__name__
        for fn in map(vars(configs).__getitem__, configs.__all__)
        if fn.__module__.endswith(f".{name}")
    ]
    for name in (
        *("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "smollm"),
        *("mixtral", "qwen3_moe", "deepseek2", "deepseek3", "gpt_oss"),
    )
}


def built(cfg: fdl.Config) -> Any:
    """The model that a config makes, without memory."""
    with torch.device("meta"):
        model: Any = fdl.build(bind(cfg).model)
    return model


def layers(cfg: fdl.Config) -> Any:
    return built(cfg).blocks


def windows(cfg: fdl.Config) -> list[int | None]:
    return [block.attention.window for block in layers(cfg)]


def lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("name", FILES)
def test_a_family_takes_80_lines_and_a_size_10(name: str) -> None:
    text = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    functions = {
        node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    sizes = [lines(functions[size]) for size in FILES[name]]
    assert sizes and max(sizes) <= 10
    rest = [line for line in text.splitlines() if line.strip()]
    assert len(rest) - sum(sizes) <= 80


@pytest.mark.parametrize("name", FILES)
def test_what_a_hub_file_may_set_is_an_argument_of_the_family(name: str) -> None:
    hub = importlib.import_module(f"fidgpt.configs.{name}").HUB
    assert set(hub.settings) <= set(inspect.signature(hub.config).parameters)
    assert not set(hub.fixed) & set(hub.settings.values())
    assert set(hub.readings) <= set(hub.settings)


def test_which_layers_look_back_without_end() -> None:
    assert set(windows(configs.mistral_7b())) == {4096}
    assert set(windows(configs.mistral_7b_v0_3())) == {None}
    assert windows(configs.gemma2_2b()) == [4096, None] * 13
    assert windows(configs.gemma3_1b()) == ([512] * 5 + [None]) * 4 + [512] * 2
    assert windows(configs.gemma3_4b())[:6] == [1024] * 5 + [None]
    assert set(windows(configs.qwen2_5_7b())) == {None}
    assert windows(configs.gpt_oss_20b()) == [128, None] * 12


def test_every_fourth_layer_of_smollm3_has_no_positions() -> None:
    has = [block.attention.rope is not None for block in layers(configs.smollm3_3b())]
    assert has == [True, True, True, False] * 9


@pytest.mark.parametrize(
    ("cfg", "scaled"), [(configs.gemma3_270m(), False), (configs.gemma3_4b(), True)]
)
def test_the_ropes_of_gemma3(cfg: fdl.Config, scaled: bool) -> None:
    blocks = layers(cfg)
    ropes: list[RoPE] = [block.attention.rope for block in blocks]
    assert len({id(rope) for rope in ropes}) == 2
    assert [rope.theta for rope in ropes[:6]] == [1e4] * 5 + [1e6]
    assert ropes[0].scaling is None
    assert isinstance(ropes[5].scaling, LinearScaling) == scaled


def test_gemma_scales_its_tokens_by_a_width_that_is_set_later() -> None:
    cfg = configs.gemma3_270m()
    assert built(cfg).embedding.scale == 640**0.5
    cfg.model.hidden_dim = 1024
    assert built(cfg).embedding.scale == 32.0


def test_the_scores_of_gemma_are_divided_by_what_was_published() -> None:
    scales = [
        layers(cfg)[0].attention.scale for cfg in (configs.gemma2_27b(), configs.gemma3_27b())
    ]
    assert scales == [144**-0.5, 168**-0.5]


def test_the_norms_across_heads_follow_width_and_heads() -> None:
    cfg = configs.olmo2_1b()
    use_gqa(cfg, num_kv_heads=2)
    make_small(cfg)
    attention = layers(cfg)[0].attention
    assert attention.query_norm.norm.weight.shape == (768,)
    assert attention.key_norm.norm.weight.shape == (2 * 128,)


def test_what_qwen2_adds_a_bias_to() -> None:
    attention = layers(configs.qwen2_5_0_5b())[0].attention
    parts = (attention.query, attention.key, attention.value, attention.out)
    assert [part.bias is not None for part in parts] == [True, True, True, False]


def is_mixed(cfg: fdl.Config) -> list[bool]:
    return [isinstance(block.mlp, MoE) for block in layers(cfg)]


def test_which_layers_are_mixtures() -> None:
    assert is_mixed(configs.mixtral_8x7b()) == [True] * 32
    assert is_mixed(configs.deepseek_v2_lite()) == [False] + [True] * 26
    assert is_mixed(configs.deepseek_v3()) == [False] * 3 + [True] * 58
    sizes: dict[str, Any] = {"hidden_dim": 64, "num_heads": 4, "expert_ffn_dim": 24}
    sparse = qwen3_moe(**sizes, num_layers=7, every=3, dense_layers=[2])
    assert is_mixed(sparse) == [False] * 5 + [True, False]
    assert len({id(block.attention.rope) for block in layers(sparse)}) == 1


def test_a_mixture_keeps_its_groups_where_they_fit_other_experts() -> None:
    for num_experts, groups in [(64, 8), (4, None)]:
        cfg = configs.deepseek_v3()
        use_moe(cfg, num_experts=num_experts)
        limit = layers(cfg)[0].mlp.router.groups
        assert (limit and limit.num_groups) == groups


def test_the_experts_of_gpt_oss_can_be_gated_otherwise() -> None:
    cfg = configs.gpt_oss_20b()
    use_swiglu(cfg)
    experts = layers(cfg)[0].mlp.experts
    assert experts.gating is swiglu
    assert experts.gate_bias.shape == (32, 2880)


def test_the_scores_of_deepseek_are_sharpened_by_their_scale() -> None:
    cfg = configs.deepseek_v2_lite()
    attention = layers(cfg)[0].attention
    assert attention.scale == pytest.approx(1.589626 * 192**-0.5, rel=1e-6)
    assert attention.rope.scaling.amplitude == 1.0
    assert layers(configs.deepseek_v3())[60].attention.scale == pytest.approx(1.873854 * 192**-0.5)
    eps = [attention.kv_norm.eps, layers(configs.deepseek_v3())[0].attention.query_norm.eps]
    assert eps == [1e-6, 1e-6]


def test_deepseek_has_no_keys_shared_by_heads_and_no_other_selections() -> None:
    layers = {"hidden_dim": 64, "num_layers": 2, "num_heads": 4, "ffn_dim": 96, "vocab_size": 97}
    experts = {"num_experts": 4, "num_shared": 1, "top_k": 2, "expert_ffn_dim": 8}
    tiny = partial(v2, **layers, **experts, first_dense=1)
    with pytest.raises(ValueError, match="num_kv_heads=8, .* num_heads=4"):
        tiny(num_kv_heads=8)
    with pytest.raises(ValueError, match="selection='best'.* greedy, or group_limited_greedy"):
        tiny(selection="best")
    with pytest.raises(ValueError, match="num_groups=None: .* group_limited_greedy with groups"):
        tiny(selection="group_limited_greedy")


def test_either_of_two_keys_sets_the_windows_of_layers() -> None:
    assert windows_of(["full_attention", "sliding_attention"], 5) == [None, 5]
    with pytest.raises(ValueError, match="layer_types has chunked_attention: use sliding_"):
        windows_of(["full_attention", "chunked_attention"], 5)


def test_a_pattern_that_repeats_is_written_once() -> None:
    assert shortest_period([1, 2, 1, 2, 1]) == [1, 2]
    assert shortest_period([1, 1, 1]) == [1]
    assert shortest_period([1, 1, 2]) == [1, 1, 2]
    assert shortest_period((1,)) == (1,)
