"""Levanter's training files become directives, and what they cannot say is listed by its path."""

import inspect
from typing import Any

import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.configs import base, gpt2_124m
from fidgpt.graph import ConfigError, bind, check_and_bind
from fidgpt.interop import Mapped, read_levanter
from fidgpt.train import BFloat16, Float32

SMALL_LLAMA = """
    model:
      type: llama
      hidden_dim: 512
      intermediate_dim: 1376
      num_layers: 6
      num_heads: 8
      num_kv_heads: 4
      seq_len: 256
      rope: {type: default, theta: 5e5, factor: 1}
      layer_norm_epsilon: 1e-6
      tie_word_embeddings: true
      use_bias: false
    optimizer:
      type: adam
      learning_rate: 3E-4
      weight_decay: 0.05
      warmup: 100
      min_lr_ratio: 0.0
      lr_schedule: cosine
      beta1: 0.8
      beta2: 0.98
      epsilon: 1e-9
      max_grad_norm: 0.5
    trainer:
      mp: p=f32,c=bfloat16
      train_batch_size: 64
      num_train_steps: 2e3
      seed: 3
      per_device_parallelism: 16
      steps_per_eval: 200
      max_eval_batches: 5
      checkpointer: {keep: [{every: 500}]}
"""


def read(text: str) -> Mapped:
    return read_levanter(inspect.cleandoc(text))


def graph_of(mapped: Mapped) -> Any:
    """The bound graph, in which everything holds that is asked of a graph."""
    return check_and_bind(compose(mapped.directives, own_catalogue()))


def test_a_llama_is_mapped_value_by_value() -> None:
    mapped = read(SMALL_LLAMA)
    cfg = graph_of(mapped)
    block = cfg.model.blocks[0]
    assert (cfg.model.hidden_dim, cfg.model.num_layers, cfg.seq_len) == (512, 6, 256)
    assert (block.attention.head_dim, block.attention.num_kv_heads) == (64, 4)
    assert (block.mlp.ffn_dim, block.mlp_norm.eps, cfg.model.norm.eps) == (1376, 1e-6, 1e-6)
    assert (block.attention.rope.theta, block.attention.rope.head_dim) == (5e5, 64)
    assert cfg.model.embedding.weight is cfg.model.unembedding.weight
    optimizer = cfg.optimizer
    assert (optimizer.lr, optimizer.weight_decay, optimizer.eps) == (3e-4, 0.05, 1e-9)
    assert (optimizer.betas, cfg.max_grad_norm) == ((0.8, 0.98), 0.5)
    assert (cfg.schedule.warmup_steps, cfg.schedule.min_ratio) == (100, 0.0)
    assert (cfg.batch_size, cfg.num_steps, cfg.seed, cfg.micro_batch_size) == (64, 2000, 3, 16)
    validation = cfg.evaluators["validation"]
    assert (validation.every, validation.data.num_batches) == (200, 5)
    assert (cfg.checkpoints.every, cfg.checkpoints.keep_last) == (500, 4)
    assert cfg.precision.__fn_or_cls__ is BFloat16
    assert [one.partition(":")[0] for one in mapped.unmapped] == [
        "optimizer.default_weight_decay_mask"
    ]


def test_no_directive_says_what_is_so_already() -> None:
    directives = read(SMALL_LLAMA).directives
    for i in range(1, len(directives)):
        if directives[i].startswith("set:"):
            fewer = compose(directives[:i] + directives[i + 1 :], own_catalogue())
            assert graph_text(fewer) != graph_text(compose(directives, own_catalogue()))


def graph_text(root: Any) -> str:
    return repr(bind(root))


def test_defaults_are_those_of_levanter() -> None:
    cfg = graph_of(read("{}"))
    block = cfg.model.blocks[0]
    assert (cfg.model.hidden_dim, cfg.model.num_layers, cfg.seq_len) == (4096, 32, 2048)
    assert (block.attention.head_dim, block.mlp.ffn_dim) == (128, 11008)
    assert (cfg.num_steps, cfg.batch_size, cfg.schedule.warmup_steps) == (400_000, 512, 4000)
    assert (cfg.optimizer.lr, cfg.optimizer.weight_decay, cfg.max_grad_norm) == (6e-4, 0.1, 1.0)
    assert cfg.precision.__fn_or_cls__ is Float32
    assert cfg.model.embedding.weight is not cfg.model.unembedding.weight


@pytest.mark.parametrize("nothing", ["null", "0", "0.0"])
def test_gradients_are_not_clipped_where_levanter_does_not(nothing: str) -> None:
    assert graph_of(read(f"optimizer: {{max_grad_norm: {nothing}}}")).max_grad_norm is None


def test_gpt2_begins_with_gpt2() -> None:
    mapped = read("""
        model: {type: gpt2, hidden_dim: 64, num_heads: 4, num_layers: 2, mlp_scale: 3,
                embed_pdrop: 0.1, attn_pdrop: 0.2, layer_norm_epsilon: 1e-6, use_bias: false,
                gradient_checkpointing: nested, upcast_attn: true}
        train_seq_len: 128
    """)
    assert mapped.directives[0] == "config:gpt2_124m"
    cfg = graph_of(mapped)
    block = cfg.model.blocks[0]
    assert (block.attention.head_dim, block.mlp.ffn_dim, cfg.seq_len) == (16, 192, 128)
    assert (cfg.model.dropout, block.dropout, block.attention.dropout) == (0.1, 0.0, 0.2)
    biases = [block.attention_norm.bias, block.attention.bias, block.mlp.bias, cfg.model.norm.bias]
    assert biases == [False] * 4 and cfg.model.norm.eps == 1e-6
    assert_listed(mapped, "model.gradient_checkpointing", "model.upcast_attn")


def test_gpt2_small_needs_no_size() -> None:
    mapped = read("model: {type: gpt2}")
    assert not [one for one in mapped.directives if one.startswith("set:model")]
    assert graph_of(mapped).model.hidden_dim == bind(gpt2_124m()).model.hidden_dim


def assert_listed(mapped: Mapped, *paths: str) -> None:
    listed = [one.partition(":")[0] for one in mapped.unmapped]
    assert [path for path in paths if path not in listed] == []


def test_whatever_cannot_be_said_is_listed() -> None:
    mapped = read("""
        data: !include data/some.yaml
        model:
          type: gemma
          activation_function: quick_gelu
          rope: {type: longrope, beta_fast: 32}
          input_embedding_norm: true
          brand_new: {deep: {deeper: 1}}
        optimizer: {type: soap, beta1: 0.9, lr_schedule: power, cooldown: 0.1, nesterov: true}
        trainer:
          mp: bfloat16
          train_batch_size: [{start: 0, value: 8}]
          tracker: [{type: wandb, project: mine, tags: [a]}, {type: clearml}]
          checkpointer: {base_path: "gs://a/b", keep: [{every: 5, until: 9}, {every: 10}]}
          model_axis_size: 2
          tensor_parallel_axes: [mlp]
        eval_harness_steps: 5
    """)
    graph_of(mapped)
    assert_listed(
        mapped,
        *("data", "model.activation_function", "model.rope.type", "model.input_embedding_norm"),
        *("model.rope.beta_fast", "model.brand_new", "optimizer.type", "optimizer.lr_schedule"),
        *("optimizer.beta1", "optimizer.cooldown", "optimizer.nesterov", "trainer.mp"),
        *("trainer.train_batch_size", "trainer.tracker[0].tags", "trainer.tracker[1].type"),
        *("trainer.checkpointer.base_path", "trainer.model_axis_size"),
        *("trainer.tensor_parallel_axes", "eval_harness_steps"),
    )


def test_mistakes_are_named_in_one_go() -> None:
    with pytest.raises(ConfigError) as error:
        read("""
            model: {type: llama, hidden_dim: wide, num_heads: 3}
            optimizer: {warmup: 1.5, learning_rate: true, cycles: 2, cycle_length: [a]}
            trainer: 5
            train_seq_len: 1.5
        """)
    for message in (
        "model.hidden_dim is wide, but must be a whole number",
        "model.hidden_dim=4096 must be a multiple of num_heads=3",
        "optimizer.warmup is 1.5",
        "optimizer: cycles and cycle_length set the same thing",
        "optimizer.cycle_length is 1 entry, but must be a number or a list of steps",
        "optimizer.learning_rate is true, but must be a number",
        "trainer is 5, but must be a mapping",
        "train_seq_len is 1.5",
    ):
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {type: qwen4}",
            "model.type is qwen4, but must be a model that fidgpt has. Did you mean",
        ),
        ("- 1", "is not a mapping"),
        ("model: !!python/object:os.system {}", "is refused"),
        ("model: {type: [1]}", "must be a text"),
    ],
)
def test_files_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert message in str(error.value)


def test_entries_without_end_do_no_harm() -> None:
    rows = ["a0: &a0 [1]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(60))]
    deep = "deep: " + "[" * 5000 + "]" * 5000
    mapped = read_levanter("\n".join([*rows, deep]))
    assert_listed(mapped, "a60", "deep")
    assert sum(map(len, mapped.unmapped)) < 10_000
    assert mapped.directives[0] == "config:base" and base.__name__ == "base"
