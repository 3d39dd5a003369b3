"""Levanter's training files become directives, and entries without an equivalent are listed."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import model, optim, parallel, train
from fidgpt.compose.composition import compose
from fidgpt.data import BPETokenizer, TokenizerFile
from fidgpt.graph import ConfigError, build, check_and_bind
from fidgpt.interop import Mapped, read_levanter

NAMES = {**vars(model), **vars(optim), **vars(parallel), **vars(train), "approx": pytest.approx}

SMALL_LLAMA = """
    model:
      {type: llama, hidden_dim: 512, intermediate_dim: 1376, num_layers: 6, num_heads: 8,
       num_kv_heads: 4, seq_len: 256, rope: {type: default, theta: 5e5, factor: 1},
       layer_norm_epsilon: 1e-6, tie_word_embeddings: true, use_bias: false}
    optimizer:
      {type: adam, learning_rate: 3E-4, weight_decay: 0.05, warmup: 100, min_lr_ratio: 0.0,
       lr_schedule: cosine, beta1: 0.8, beta2: 0.98, epsilon: 1e-9, max_grad_norm: 0.5}
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
SIZES = "hidden_dim: 64, num_heads: 8, num_kv_heads: 2, num_layers: 3, intermediate_dim: 96"
BLOCK = "model.blocks[0]"


def read(text: str) -> Mapped:
    return read_levanter(inspect.cleandoc(text))


def graph_of(mapped: Mapped) -> Any:
    """Return the bound graph, with everything checked."""
    return check_and_bind(compose(mapped.directives).config)


def listed(mapped: Mapped) -> list[str]:
    """Return the paths without an equivalent, but for the one that every file has."""
    names = [one.partition(":")[0] for one in mapped.unmapped]
    return [name for name in names if name != "optimizer.default_weight_decay_mask"]


def cases(table: str) -> list[tuple[str, str, str]]:
    """Read `entries -> values ! unmapped`: each on a line, and on the indented ones after it."""
    rows = [" ".join(row.split()) for row in re.split(r"\n(?=\S)", table.strip())]
    pairs = [(one, *rest.partition("!")) for one, _, rest in (row.partition(" ->") for row in rows)]
    return [(one, values, names) for one, values, _, names in pairs]


def value_at(root: Any, path: str) -> Any:
    """Return the value at a path, in which `()` is what a node calls."""
    for step in re.findall(r"\w+|\[[^\]]*\]|\(\)", path):
        if step == "()":
            root = fdl.get_callable(root)
        else:
            root = root[ast.literal_eval(step[1:-1])] if step[0] == "[" else getattr(root, step)
    return root


def assert_mapped(text: str, values: str, unmapped: str = "", *, inside: str = "") -> None:
    """Check values of the graph, `path = value` each, and the paths without an equivalent."""
    mapped = read(text)
    cfg = graph_of(mapped)
    for line in filter(None, map(str.strip, re.split(r"[;\n]", values))):
        path, _, value = line.partition(" = ")
        found = value_at(cfg, f"{inside}.{path}" if inside else path)
        assert found == eval(value, NAMES), f"{path} is {found}"
    assert sorted(listed(mapped)) == sorted(unmapped.split())


def test_a_llama_is_mapped_value_by_value() -> None:
    assert_mapped(
        SMALL_LLAMA,
        """model.hidden_dim = 512; model.num_layers = 6; seq_len = 256; model.norm.eps = 1e-6
        model.blocks[0].attention.head_dim = 64; model.blocks[0].attention.num_kv_heads = 4
        model.blocks[0].mlp.ffn_dim = 1376; model.blocks[0].mlp_norm.eps = 1e-6
        model.blocks[0].attention.rope.theta = 5e5; model.blocks[0].attention.rope.head_dim = 64
        optimizer.lr = 3e-4; optimizer.weight_decay = 0.05; optimizer.eps = 1e-9
        optimizer.betas = (0.8, 0.98); max_grad_norm = 0.5; precision() = BFloat16
        schedule.warmup = 100; schedule.min_lr_ratio = 0.0
        batch_size = 64; num_steps = 2000; seed = 3; micro_batch_size = 16
        evaluators['validation'].every = 200; evaluators['validation'].data.num_batches = 5
        checkpoints.every = 500; checkpoints.keep_last = 4""",
    )


@pytest.mark.slow
def test_defaults_are_those_of_levanter() -> None:
    assert_mapped(
        "trainer: {}",
        """model.hidden_dim = 4096; model.num_layers = 32; seq_len = 2048
        model.blocks[0].attention.head_dim = 128; model.blocks[0].mlp.ffn_dim = 11008
        num_steps = 400_000; batch_size = 512; schedule.warmup = 0.01
        optimizer.lr = 6e-4; optimizer.weight_decay = 0.1; max_grad_norm = 1.0
        precision() = Float32; checkpoints.temporary.minutes = 15.0""",
    )
    cfg = graph_of(read("trainer: {}"))
    assert cfg.model.embedding.weight is not cfg.model.unembedding.weight
    small = read("model: {type: gpt2}")
    assert not [one for one in small.directives if one.startswith("set:model")]


MODELS = """
rope: {type: default, theta: 5e5, factor: 1.0} -> attention.rope.theta = 5e5
rope: {type: linear, factor: 4} -> attention.rope.theta = 1e4; attention.rope.scaling() =
    LinearScaling; attention.rope.scaling.factor = 4.0
rope: {type: llama3, factor: 32} -> attention.rope.theta = 5e5; attention.rope.scaling() =
    Llama3Scaling; attention.rope.scaling.factor = 32.0; attention.rope.scaling.original_seq_len
    = 8192; attention.rope.scaling.low_freq_factor = 1.0;
    attention.rope.scaling.high_freq_factor = 4.0
rope: {type: yarn, factor: 4} -> attention.rope.scaling = None ! model.rope
type: mistral -> attention.window = 4096
type: mistral, seq_len: 1024 -> attention.window = None
type: mistral, sliding_window: 512 -> attention.window = 512
type: gemma, head_dim: 16 -> mlp() = GeGLU; mlp_norm() = OffsetRMSNorm; mlp_norm.eps = 1e-5
type: qwen, use_sliding_window: false, sliding_window: 8 -> attention.bias = True;
    attention.out_bias = False
type: qwen3, layer_norm_epsilon: 1e-6 -> attention.query_norm.eps = 1e-6
type: mixtral, n_routed_experts: 4, n_shared_experts: 2 -> mlp() = MoE; mlp.num_experts = 4;
    mlp.router.top_k = 2; mlp.experts.ffn_dim = 96; mlp.shared.ffn_dim = 192;
    mlp.balancing[0].weight = 0.005; mlp.balancing[1].weight = 0.001
type: mixtral, lbl_coef: 0.1, rzl_coef: null -> mlp.balancing[0].weight = 0.05;
    mlp.balancing[1].weight = 0.0
use_layer_norm_weight: false, layer_norm_epsilon: 1e-6 -> mlp_norm() = WeightlessRMSNorm;
    mlp_norm.eps = 1e-6
hybrid_norm: true -> () = SandwichBlock; mlp_out_norm() = RMSNorm
gradient_checkpointing: false -> () = Block; mlp.ffn_dim = 96
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "values", "names"), cases(MODELS))
def test_models_are_mapped(text: str, values: str, names: str) -> None:
    assert_mapped(f"model: {{{SIZES}, {text}}}", values, names, inside=BLOCK)


@pytest.mark.parametrize("value", ["true", "full"])
def test_recomputation_is_mapped(value: str) -> None:
    text = f"model: {{{SIZES}, gradient_checkpointing: {value}}}"
    assert_mapped(text, "recompute() = Recompute; blocks[0].mlp.ffn_dim = 96", "", inside="model")


@pytest.mark.slow
def test_gpt2_starts_from_gpt2() -> None:
    assert_mapped(
        """
        model: {type: gpt2, hidden_dim: 64, num_heads: 4, num_layers: 2, mlp_scale: 3,
                embed_pdrop: 0.1, attn_pdrop: 0.2, layer_norm_epsilon: 1e-6, use_bias: false,
                gradient_checkpointing: nested, upcast_attn: true,
                scale_attn_by_inverse_layer_idx: true}
        train_seq_len: 128
        """,
        """seq_len = 128; model.dropout = 0.1; model.norm.bias = False; model.norm.eps = 1e-6
        model.blocks[0].attention.head_dim = 16; model.blocks[0].mlp.ffn_dim = 192
        model.blocks[0].dropout = 0.0; model.blocks[0].attention.dropout = 0.2
        model.blocks[0].attention_norm.bias = False; model.blocks[0].attention.bias = False
        model.blocks[0].mlp.bias = False""",
        "model.gradient_checkpointing model.scale_attn_by_inverse_layer_idx model.upcast_attn",
    )


TRAINERS = """
mp: f32 -> precision() = Float32
mp: 'p=f32,c=bfloat16' -> precision() = BFloat16
mp: 'compute=bfloat16,params=float32,output=float32' -> precision() = BFloat16 ! mp
mp: 'p=f32, c=F16' -> precision() = Float16
mp: 'p=f32,c=f8' -> precision() = native_precision ! mp
fsdp_axis: embed, batch_axis: batch -> parallel.mesh.shard = -1
fsdp_axis: null, tensor_parallel_axes: [mlp, heads] -> parallel() = DataParallel
replica_dcn_axis_size: 2 -> parallel() = DataParallel ! replica_dcn_axis_size
train_batch_size: -1, per_device_parallelism: 4 -> micro_batch_size = 4 ! train_batch_size
profiler: true, profiler_start_step: 3 -> observers = () ! profiler
profiler: false, profiler_start_step: 3 -> observers = ()
model_averaging: {type: ema, beta: 0.9} -> average = None ! model_averaging
checkpointer: {save_interval: 1h 30m} -> checkpoints.temporary.minutes = 90.0
checkpointer: {save_interval: null} -> checkpoints.temporary = None
checkpointer: {save_interval: soon} -> ! checkpointer.save_interval
checkpointer: {keep: [{every: 100, until: 1000}, {every: 500, until: null}]} ->
    checkpoints.every = None; checkpoints.keep[0].until = 1000; checkpoints.keep[1].every = 500;
    checkpoints.keep[1].until = None
tracker: {mode: disabled} -> trackers[1]() = JSONLines
tracker: [{project: mine, entity: me, mode: offline, name: null, save_code: true}, {type:
    tensorboard, logdir: logs}, {type: json_logger}, {type: trackio, project: theirs, space_id:
    a/b}] -> trackers[2]() = TensorBoard; trackers[3]() = Trackio; trackers[4]() = WandB;
    trackers[3].space = 'a/b'; trackers[4].project = 'mine'; trackers[4].mode = 'offline' !
    tracker[1].logdir
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "values", "names"), cases(TRAINERS))
def test_trainers_are_mapped(text: str, values: str, names: str) -> None:
    unmapped = " ".join(f"trainer.{name}" for name in names.split())
    assert_mapped(f"trainer: {{num_train_steps: 100, {text}}}", values, unmapped)


OPTIMIZERS = """
max_grad_norm: null -> max_grad_norm = None
type: lion, learning_rate: 1e-4, beta2: 0.98, epsilon: 1e-8 -> optimizer() = Lion; optimizer.lr
    = 1e-4; optimizer.betas = (0.9, 0.98)
type: sophia-h, learning_rate: 1e-4, beta1: 0.5, epsilon: 1e-3 -> optimizer.lr = 1e-4;
    optimizer.betas = (0.9, 0.95) ! type beta1 epsilon
type: muon, learning_rate: 0.02, adam_lr: 4e-4, momentum: 0.9, nesterov: false, backend_steps:
    6, weight_decay: 0.01, beta1: 0.8, lr_schedule: inv -> optimizer() = Muon; optimizer.lr =
    4e-4; optimizer.momentum = 0.9; groups.lr_scale = approx(50.0); optimizer.nesterov = False;
    optimizer.ns_steps = 6; optimizer.betas = (0.8, 0.95); optimizer.weight_decay = 0.01;
    optimizer.adjust_lr_fn = 'original' ! lr_schedule
type: muon, use_kimi_scaling: true -> optimizer.adjust_lr_fn = 'match_rms_adamw'
skip_bad_steps: {rolling_interval_length: 32, sigma_factor: 4} -> guard = None ! skip_bad_steps
skip_bad_steps: false -> guard = None; average = None
lr_schedule: {type: constant}, warmup: 0.5 -> schedule.shape() = NoDecay; schedule.warmup = 0.5
lr_schedule: linear, decay: 0.2, min_lr_ratio: 0 -> schedule.shape() = LinearDecay;
    schedule.warmup = 0.01; schedule.decay = 0.2; schedule.min_lr_ratio = 0.0
lr_schedule: linear, warmup: 10 -> schedule.warmup = 10; schedule.decay = None
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "values", "names"), cases(OPTIMIZERS))
def test_optimizers_are_mapped(text: str, values: str, names: str) -> None:
    unmapped = " ".join(f"optimizer.{name}" for name in names.split())
    assert_mapped(f"trainer: {{num_train_steps: 100}}\noptimizer: {{{text}}}", values, unmapped)


@pytest.mark.parametrize(
    ("text", "minima", "marks"),
    [
        # The last step of each cycle, and values at some steps, counted from 1.
        (
            "warmup: 0.0, decay: 0.1, cycles: [30, 70], lr_schedule: cosine",
            [30, 70, 100],
            {1: 1.0, 27: 1.0, 30: 0.1, 31: 1.0, 66: 1.0, 68: 0.55, 70: 0.1, 100: 0.1},
        ),
        (
            "warmup: 5, cycles: 2, lr_schedule: linear, min_lr_ratio: 0.2",
            [50, 100],
            {1: 0.2, 5: 1.0, 50: 0.2, 75: 0.6, 100: 0.2},
        ),
        (
            "warmup: 0.2, rewarmup: 0.1, cycle_length: 0.5, lr_schedule: linear, min_lr_ratio: 0.2",
            [50, 100],
            {10: 1.0, 30: 0.6, 50: 0.2, 53: 0.68, 55: 1.0, 100: 0.2},
        ),
        (
            "warmup: 0, decay: 10, cycle_length: [30, 40], lr_schedule: inv",
            [30, 70, 100],
            {20: 1.0, 25: 1 / 5.5, 30: 0.1, 31: 1.0, 70: 0.1, 95: 1 / 5.5},
        ),
        ("warmup: 0, haps: [40], lr_schedule: linear", [40, 100], {40: 0.1, 70: 0.55}),
        (
            "warmup: 0, lr_schedule: {type: inv_sqrt, timescale: 25}",
            [100],
            {25: 1.0, 50: 0.5**0.5, 100: 0.5},
        ),
        (
            "warmup: 10, decay: 0.2, lr_schedule: cosine, min_lr_ratio: 0",
            [100],
            {10: 1.0, 80: 1.0, 90: 0.5, 100: 0.0},
        ),
        ("warmup: 0, rewarmup: 1, cycles: 2, lr_schedule: constant", [50, 100], {1: 1.0, 60: 1.0}),
    ],
)
def test_cycles_and_shapes_are_mapped(text, minima, marks):
    mapped = read(f"trainer: {{num_train_steps: 100}}\noptimizer: {{{text}}}")
    schedule = build(graph_of(mapped).schedule)
    assert isinstance(schedule, optim.Phases) and schedule.ends == minima
    # As optax counts: a step has the value at its beginning, and none that of the end of a cycle.
    reached = {step: value for step, value in marks.items() if step not in minima}
    assert {step: schedule(step) for step in reached} == pytest.approx(reached)
    assert listed(mapped) == ["optimizer.lr_schedule"] * ("inv" in text.replace("inv_sqrt", ""))


def test_the_rate_of_each_step_is_that_of_levanter() -> None:
    """optax.join_schedules of linear_schedule(0, 1, 2) and of linear_schedule(1, 0.2, 8)."""
    text = "warmup: 2, lr_schedule: linear, min_lr_ratio: 0.2"
    mapped = read(f"trainer: {{num_train_steps: 10}}\noptimizer: {{{text}}}")
    schedule = build(graph_of(mapped).schedule)
    expected = [0, 0.5, *(1 - 0.1 * step for step in range(8))]
    assert [schedule(step) for step in range(10)] == pytest.approx(expected)
    short = read("trainer: {num_train_steps: 10}\noptimizer: {warmup: 0.01, lr_schedule: linear}")
    assert build(graph_of(short).schedule)(0) == 1.0  # int(0.01 * 10) steps of warm-up


def test_a_model_of_the_hub_is_not_invented() -> None:
    text = "use_hf_model_config: true\ninitialize_from_hf: meta-llama/Llama-2-7b-hf\n"
    text += "model: {type: llama}"
    with pytest.raises(ConfigError, match="use_hf_model_config .*from_hf.directory"):
        read(text)
    only_weights = text.replace("true", "false")
    assert "initialize_from_hf" in listed(read(only_weights))


@pytest.mark.parametrize(
    "source",
    ["initialize_from_hf: mosaicml/mpt-7b", "hf_checkpoint: a/b", "checkpoint_is_hf: true"],
)
def test_a_file_without_a_model_has_the_sizes_of_the_hub(source: str) -> None:
    """As config/lora/mpt_biomed.yaml and config/sampler/sample_llama8b.yaml of Levanter."""
    with pytest.raises(ConfigError, match=r"from_hf.directory"):
        read(f"{source}\ntrainer: {{num_train_steps: 10}}")


TEXTS = """
train_urls: ['my data/a, b.jsonl'], text_key: body, tokenizer: gpt2 -> corpus.source.path = 'my
    data/a, b.jsonl'; corpus.source.text_field = 'body' ! tokenizer
train_urls: ['gs://a/b.jsonl'] -> ! train_urls
train_urls: ['a/*.jsonl'] -> ! train_urls
train_urls: [a.jsonl], format: {type: chat} -> ! train_urls format
id: a/b, name: small, format: {type: text, text_key: body} -> corpus.source.path = 'a/b';
    corpus.source.name = 'small'; corpus.source.text_field = 'body'
configs: {web: {id: a/b}, own: {train_urls: [code/]}, test: {validation_urls: [c]}},
    train_weights: {web: 0.8, own: 0.2}, stop_strategy: restart ->
    streams['own'].corpus.source.path = 'a/b'; streams['own_'].corpus.source.path = 'code/';
    weights = {'own': 0.8, 'own_': 0.2} ! configs.test
configs: {a: {train_urls: [a.txt]}, b: {id: b/c}}, train_weights: {a: 1, b: 1} -> ! configs
    train_weights
configs: {a: {train_urls: [a.txt]}}, train_weights: [[0, {a: 1}]] -> ! configs train_weights
configs: {a: {train_urls: [a.txt]}}, train_weights: {a: 0} -> ! configs train_weights
"""


@pytest.mark.parametrize(("text", "values", "names"), cases(TEXTS))
def test_texts_are_mapped(text: str, values: str, names: str) -> None:
    unmapped = " ".join(f"data.{name}" for name in names.split())
    assert_mapped(f"data: {{{text}}}", values, unmapped, inside="data")


def test_a_file_is_read_and_a_local_tokenizer_is_used(tmp_path: Path) -> None:
    tokenizer = BPETokenizer(vocab_size=270).build(["to be or not to be " * 99])
    tokenizer.save(tmp_path / "tokenizer.json")
    size = tokenizer.vocab_size
    (tmp_path / "wrong.json").write_text("{}")
    path = tmp_path / "run.yaml"
    for name, names in (("", []), ("tokenizer.json", []), ("wrong.json", ["data.tokenizer"])):
        path.write_text(f"data: {{tokenizer: '{tmp_path / name}'}}")
        mapped = read_levanter(path)
        assert listed(mapped) == names
        cfg = graph_of(mapped)
        found = cfg.data.corpus.tokenizer
        assert (fdl.get_callable(found) is TokenizerFile) == (not names)
        if not names:
            assert (found.path, cfg.vocab_size) == (f"{tmp_path}/tokenizer.json", size)
    with pytest.raises(ConfigError, match=r"no\.yaml cannot be read"):
        read_levanter(tmp_path / "no.yaml")


@pytest.mark.slow
def test_entries_without_an_equivalent_are_listed() -> None:
    mapped = read("""
        data: !include data/some.yaml
        model:
          {type: gemma, activation_function: quick_gelu, rope: {type: longrope, beta_fast: 32},
           input_embedding_norm: true, brand_new: {deep: {deeper: 1}}}
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
    wanted = """data model.activation_function model.rope model.input_embedding_norm
        model.brand_new optimizer.type optimizer.lr_schedule optimizer.beta1
        optimizer.cooldown optimizer.nesterov trainer.mp trainer.train_batch_size
        trainer.tracker[0].tags trainer.tracker[1].type trainer.checkpointer.base_path
        trainer.model_axis_size trainer.tensor_parallel_axes eval_harness_steps"""
    assert sorted(listed(mapped)) == sorted(wanted.split())
    qwen = read("model: {type: qwen3, use_sliding_window: true, sliding_window: 8}")
    assert listed(qwen) == ["model.use_sliding_window", "model.sliding_window"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {type: qwen4}", "no equivalent of model.type 'qwen4'. Did you mean"),
        ("model: {hidden_dim: wide}", "model.hidden_dim is wide, but must be int"),
        ("model: {num_heads: 3}", "model.hidden_dim=4096 must be a multiple of num_heads=3"),
        ("optimizer: {learning_rate: true}", "optimizer.learning_rate is true, but must be float"),
        ("- 1", "is no training file"),
        ("model: !!python/object:os.system {}", "is refused"),
        ("cache_dir: a\ntokenizer: gpt2", "is no training file: it has no model:"),
        ("model: a/b\nlearning_rate: 1\ncutoff_len: 8", "are others: learning_rate, cutoff_len"),
    ],
)
def test_files_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text)
