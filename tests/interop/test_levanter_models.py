"""What a Levanter file says of a model beyond its sizes becomes the part that computes it."""

import inspect
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import ConfigErrors, check_and_bind, find
from fidgpt.interop import Mapped, read_levanter
from fidgpt.model import (
    Block,
    GeGLU,
    LinearScaling,
    Llama3Scaling,
    MoE,
    OffsetRMSNorm,
    Recompute,
    RMSNorm,
    SandwichBlock,
    WeightlessRMSNorm,
    YaRN,
    root_of_width,
)

SIZES = "hidden_dim: 64, num_heads: 8, num_kv_heads: 2, num_layers: 3, intermediate_dim: 96"


def read(text: str) -> Mapped:
    return read_levanter(inspect.cleandoc(text))


def graph_of(mapped: Mapped) -> Any:
    """The bound graph, in which everything holds that is asked of a graph."""
    return check_and_bind(compose(mapped.directives, own_catalogue()))


def block_of(text: str) -> Any:
    """The block of a model of which everything could be said."""
    mapped = read(f"model: {{{SIZES}, {text}}}")
    assert listed(mapped) == []
    return graph_of(mapped).model.blocks[0]


def listed(mapped: Mapped) -> list[str]:
    names = [one.partition(":")[0] for one in mapped.unmapped]
    return [name for name in names if name != "optimizer.default_weight_decay_mask"]


def said(part: Any) -> tuple[Any, dict[str, Any]]:
    return fdl.get_callable(part), dict(part.__arguments__)


@pytest.mark.parametrize(
    ("text", "theta", "scaling"),
    [
        ("{type: default, theta: 5e5, factor: 1.0}", 5e5, None),
        ("{type: linear, factor: 4}", 1e4, (LinearScaling, {"factor": 4.0})),
        (
            "{type: llama3, factor: 32}",
            5e5,
            (
                Llama3Scaling,
                {
                    "factor": 32.0,
                    "original_seq_len": 8192,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                },
            ),
        ),
        ("{type: yarn, original_max_position_embeddings: 256}", 1e4, None),
    ],
)
def test_waves_are_stretched_as_the_file_says(text: str, theta: float, scaling: Any) -> None:
    rope = block_of(f"rope: {text}").attention.rope
    part = rope.__arguments__.get("scaling")
    assert rope.theta == theta and (part and said(part)) == scaling


def test_yarn_is_that_of_its_paper_and_this_is_told() -> None:
    mapped = read("model: {rope: {type: yarn, factor: 4, mscale: 2}}")
    kind, arguments = said(graph_of(mapped).model.blocks[0].attention.rope.scaling)
    assert kind is YaRN and arguments["original_seq_len"] == 2048
    assert arguments["amplitude"] == pytest.approx((1 + 0.2 * 1.3862944) ** 0.5)
    assert listed(mapped) == ["model.rope.type"]
    with pytest.raises(
        ConfigErrors, match=r"model\.rope\.factor is 0\.0, but must be a number above 0"
    ):
        read("model: {rope: {type: yarn, factor: 0}}")


@pytest.mark.parametrize(
    ("text", "window"), [("", 4096), ("seq_len: 1024", None), ("sliding_window: 512", 512)]
)
def test_layers_of_mistral_have_a_window_that_a_sequence_can_fill(
    text: str, window: int | None
) -> None:
    attention = block_of(f"type: mistral, {text}").attention
    assert attention.__arguments__.get("window") == window


def test_gemma() -> None:
    mapped = read(f"model: {{type: gemma, {SIZES}, head_dim: 16}}")
    model = graph_of(mapped).model
    assert listed(mapped) == []
    assert fdl.get_callable(model.embedding.scale) is root_of_width
    assert fdl.get_callable(model.blocks[0].mlp) is GeGLU
    assert [norm.eps for norm in find(model, OffsetRMSNorm)] == [1e-5] * 3
    assert model.embedding.weight is model.unembedding.weight


def test_qwen_and_qwen_3() -> None:
    attention = block_of("type: qwen, use_sliding_window: false, sliding_window: 8").attention
    assert (attention.bias, attention.out_bias) == (True, False)
    attention = block_of("type: qwen3, layer_norm_epsilon: 1e-6").attention
    assert attention.query_norm.eps == 1e-6
    assert listed(read("model: {type: qwen3, use_sliding_window: true, sliding_window: 8}")) == [
        "model.use_sliding_window",
        "model.sliding_window",
    ]


@pytest.mark.parametrize(
    ("text", "weights"), [("", [0.005, 0.001]), ("lbl_coef: 0.1, rzl_coef: null", [0.05, 0.0])]
)
def test_mixtral(text: str, weights: list[float]) -> None:
    mlp = block_of(f"type: mixtral, n_routed_experts: 4, n_shared_experts: 2, {text}").mlp
    assert fdl.get_callable(mlp) is MoE
    assert (mlp.num_experts, mlp.router.top_k) == (4, 2)
    assert (mlp.experts.ffn_dim, mlp.shared.ffn_dim) == (96, 192)
    assert [part.weight for part in mlp.balancing] == weights


def test_norms() -> None:
    block = block_of("use_layer_norm_weight: false, layer_norm_epsilon: 1e-6")
    assert said(block.mlp_norm)[0] is WeightlessRMSNorm and block.mlp_norm.eps == 1e-6
    block = block_of("hybrid_norm: true")
    assert fdl.get_callable(block) is SandwichBlock
    assert fdl.get_callable(block.mlp_out_norm) is RMSNorm


@pytest.mark.parametrize(("word", "is_said"), [("true", True), ("full", True), ("false", False)])
def test_blocks_compute_again_what_they_do_not_keep(word: str, is_said: bool) -> None:
    block = block_of(f"gradient_checkpointing: {word}")
    assert fdl.get_callable(block) is (Recompute if is_said else Block)
    inner = block.block if is_said else block
    assert inner.mlp.ffn_dim == 96


def test_scores_of_gpt2_may_shrink_with_the_depth() -> None:
    text = "{type: gpt2, num_layers: 3, scale_attn_by_inverse_layer_idx: true, "
    mapped = read(f"model: {text} gradient_checkpointing: true}}")
    assert listed(mapped) == []
    scales = [block.block.attention.scale for block in graph_of(mapped).model.blocks]
    assert scales == pytest.approx([1 / 8, 1 / 16, 1 / 24])
