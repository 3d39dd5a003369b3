"""torchtitan's TOML files and dataclasses become directives, and the rest is listed."""

import dataclasses
import inspect
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import model, optim
from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, check_and_bind
from fidgpt.interop import Mapped, read_torchtitan
from fidgpt.interop import __main__ as command
from fidgpt.train import BFloat16, Float32

QWEN = """
    [job]
    description = "a small run"
    [model]
    name = "qwen3"
    flavor = "0.6B"
    converters = ["quantize.linear.float8", "quantize.grouped_mm.float8"]
    [optimizer]
    lr = 1e-3
    eps = 1e-9
    beta2 = 0.98
    weight_decay = 0.2
    [lr_scheduler]
    warmup_steps = 50
    decay_ratio = 0.3
    decay_type = "sqrt"
    min_lr_factor = 0.05
    [training]
    local_batch_size = 4
    global_batch_size = 64
    seq_len = 512
    max_norm = 0.5
    steps = 600
    mixed_precision_param = "float32"
    seed = 3
    [activation_checkpoint]
    mode = "full"
    [compile]
    enable = true
    [checkpoint]
    enable = true
    interval = 100
    keep_latest_k = 3
    async_mode = "async"
    [validation]
    enable = true
    freq = 20
    steps = 5
"""


def graph_of(mapped: Mapped) -> Any:
    return check_and_bind(compose(mapped.directives).config)


def listed(mapped: Mapped) -> set[str]:
    return {one.partition(":")[0] for one in mapped.unmapped}


def test_a_file_is_mapped_value_by_value(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(inspect.cleandoc(QWEN))
    mapped = read_torchtitan(path)
    assert listed(mapped) == {"model.converters", "optimizer.weight_decay"}
    assert {"config:qwen3_0_6b", "fiddler:use_async_checkpoints"} <= {*mapped.directives}
    cfg = graph_of(mapped)
    assert (cfg.batch_size, cfg.micro_batch_size, cfg.seq_len, cfg.num_steps) == (64, 4, 512, 600)
    assert (cfg.max_grad_norm, cfg.seed) == (0.5, 3)
    adamw = cfg.optimizer
    assert (adamw.lr, adamw.eps, adamw.weight_decay) == (1e-3, 1e-9, 0.2)
    assert tuple(adamw.betas) == (0.9, 0.98)
    schedule = cfg.schedule
    assert (schedule.warmup, schedule.decay, schedule.min_lr_ratio) == (50, 180, 0.05)
    assert schedule.shape.__fn_or_cls__ is optim.SqrtDecay
    assert cfg.precision.__fn_or_cls__ is Float32
    assert (cfg.checkpoints.every, cfg.checkpoints.keep_last) == (100, 3)
    validation = cfg.evaluators["validation"]
    assert (validation.every, validation.data.num_batches) == (20, 5)
    wrappers = [cfg.model.recompute, cfg.model.compile, cfg.model.float8]
    kinds = [one.__fn_or_cls__ for one in wrappers]
    assert kinds == [model.Recompute, model.Compile, model.Float8]


def rate_of_torchtitan(step: int, *, steps: int, warmup: int, decay: int, floor: float) -> float:
    """Return the factor of a step, as torchtitan/components/lr_scheduler.py defines it."""
    stable = steps + 1 - decay  # with a step at the end that no run takes
    if step < warmup:
        return (step + 1) / warmup
    if step < stable:
        return 1.0
    return floor + (1 - floor) * (1 - (step + 1 - stable) / decay)


@pytest.mark.parametrize(
    ("steps", "warmup", "ratio", "decay"),
    [(10, 2, None, 8), (100, 10, 0.3, 30), (7, 0, None, 7), (20, 15, 0.5, 5), (5, 5, None, 0)],
)
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_the_rate_of_each_step_is_that_of_torchtitan(
    steps: int, warmup: int, ratio: float | None, decay: int, floor: float
) -> None:
    text = f"model = {{name = 'llama3'}}\ntraining = {{steps = {steps}}}\n[lr_scheduler]\n"
    text += f"warmup_steps = {warmup}\nmin_lr_factor = {floor}\n"
    text += "" if ratio is None else f"decay_ratio = {ratio}\n"
    schedule = fdl.build(graph_of(read_torchtitan(text)).schedule)
    shape = {"steps": steps, "warmup": warmup, "decay": decay, "floor": floor}
    expected = [rate_of_torchtitan(step, **shape) for step in range(steps)]
    assert [schedule(step) for step in range(steps)] == pytest.approx(expected)


def test_the_published_example_of_ten_steps() -> None:
    text = "model = {name = 'llama3'}\ntraining = {steps = 10}\nlr_scheduler = {warmup_steps = 2}"
    schedule = fdl.build(graph_of(read_torchtitan(text)).schedule)
    rates = [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    assert [schedule(step) for step in range(10)] == rates


def test_the_floor_of_files_of_2025_has_another_name() -> None:
    """`lr_min` until torchtitan 881f0ca46, and Llama 2 until 4d88a8a44."""
    text = "model = {name = 'llama2', flavor = '13B'}\nlr_scheduler = {lr_min = 0.1}"
    mapped = read_torchtitan(text)
    assert "lr_scheduler.lr_min" not in listed(mapped)
    cfg = graph_of(mapped)
    assert cfg.schedule.min_lr_ratio == 0.1
    assert (cfg.model.hidden_dim, cfg.model.num_layers, cfg.vocab_size) == (5120, 40, 32_000)


# Parameters with embeddings and without, of torchtitan/models/*/__init__.py, and whether tied.
@pytest.mark.parametrize(
    ("name", "flavor", "sizes"),
    [
        ("llama3", "debugmodel", {"hidden_dim": 256, "num_layers": 6, "vocab_size": 2048}),
        ("llama3", "1B", {"hidden_dim": 2048, "num_layers": 16, "vocab_size": 128_256}),
        ("llama3", "3B", {"hidden_dim": 3072, "num_layers": 28, "vocab_size": 128_256}),
        ("llama3", "8B_flex", {"hidden_dim": 4096, "num_layers": 32, "vocab_size": 128_256}),
        ("llama3", "405B", {"hidden_dim": 16_384, "num_layers": 126, "vocab_size": 128_256}),
    ],
)
def test_all_flavors_of_llama_3_scale_rope(name: str, flavor: str, sizes: dict[str, int]) -> None:
    """As in RoPE.Config(scaling="llama"), whose factors are 8, 1, 4 and 8192."""
    cfg = graph_of(read_torchtitan(f"[model]\nname = '{name}'\nflavor = '{flavor}'"))
    found = {"hidden_dim": cfg.model.hidden_dim, "num_layers": cfg.model.num_layers}
    assert found | {"vocab_size": cfg.vocab_size} == sizes
    scaling = fdl.build(cfg.model.blocks[0].attention.rope.scaling)
    assert isinstance(scaling, model.Llama3Scaling)
    assert vars(scaling) == vars(model.Llama3Scaling(factor=8.0, original_seq_len=8192))
    is_tied = cfg.model.embedding.weight is cfg.model.unembedding.weight
    assert is_tied == (flavor in ("1B", "3B"))


@pytest.mark.parametrize(
    ("name", "flavor", "heads", "experts"),
    [
        ("qwen3", "debugmodel_moe", 16, (64, 8)),
        ("qwen3", "30B-A3B", 32, (128, 8)),
        ("deepseek_v3", "debugmodel", 16, (8, 3)),
        ("gpt_oss", "debugmodel", 64, (8, 4)),
        ("gpt_oss", "20b", 64, (32, 4)),
    ],
)
def test_mixtures_balance_by_a_bias_and_no_loss(
    name: str, flavor: str, heads: int, experts: tuple[int, int]
) -> None:
    """As MoE.Config.load_balance_coeff = 1e-3 and no auxiliary loss."""
    cfg = graph_of(read_torchtitan(f"[model]\nname = '{name}'\nflavor = '{flavor}'"))
    for block in cfg.model.blocks:
        assert block.attention.num_heads == heads
        assert (block.mlp.num_experts, fdl.build(block.mlp.router.top_k)) == experts
        assert block.mlp.balancing == [] and block.mlp.router.selection_bias.rate == 1e-3


def test_files_of_2024_have_these_entries_elsewhere() -> None:
    mapped = read_torchtitan(
        """
        [model]
        name = "llama3"
        flavor = "8B"
        [training]
        batch_size = 1
        seq_len = 8192
        warmup_steps = 200
        steps = 1000
        data_parallel_degree = 4
        tensor_parallel_degree = 2
        compile = true
        enable_float8_linear = true
        [experimental]
        context_parallel_degree = 2
        pipeline_parallel_degree = 1
        """
    )
    assert listed(mapped) == {"optimizer.weight_decay", "activation_checkpoint.mode"}
    cfg = graph_of(mapped)
    mesh = cfg.parallel.mesh
    assert (mesh.shard, mesh.context, mesh.tensor, cfg.schedule.warmup) == (4, 2, 2, 200)
    assert cfg.model.compile is not None and cfg.model.float8 is not None


def test_defaults_are_those_of_torchtitan_and_the_rest_is_listed() -> None:
    mapped = read_torchtitan(
        """
        [model]
        name = "llama3"
        flavor = "debugmodel"
        hf_assets_path = "assets"
        converters = ["mx"]
        [optimizer]
        name = "Adam"
        [training]
        dataset = "c4"
        [parallelism]
        data_parallel_replicate_degree = 2
        expert_parallel_degree = 4
        pipeline_parallel_schedule = "1F1B"
        [brand_new]
        deep = 1
        """
    )
    assert listed(mapped) == {
        *("model.converters", "model.hf_assets_path", "optimizer.name", "optimizer.weight_decay"),
        *("training.dataset", "training.local_batch_size", "activation_checkpoint.mode"),
        *("parallelism.expert_parallel_degree", "brand_new"),
    }
    cfg = graph_of(mapped)
    assert (cfg.parallel.mesh.replicate, cfg.parallel.mesh.expert) == (2, 1)
    mixture = "[model]\nname = 'qwen3'\nflavor = '30B-A3B'\n"
    mixture += "[parallelism]\ndata_parallel_shard_degree = 4\nexpert_parallel_degree = 4"
    assert graph_of(read_torchtitan(mixture)).parallel.mesh.expert == 4
    assert (cfg.batch_size, cfg.micro_batch_size, cfg.num_steps) == (16, 8, 10_000)
    assert (cfg.model.hidden_dim, cfg.model.num_layers, cfg.vocab_size) == (256, 6, 2048)
    assert (cfg.optimizer.lr, cfg.max_grad_norm, cfg.checkpoints.every) == (8e-4, 1.0, None)
    assert cfg.precision.__fn_or_cls__ is BFloat16


@pytest.mark.parametrize(
    ("text", "sizes", "is_sequence_parallel"),
    [
        ("tensor_parallel_degree = 2", (1, -1, 1, 2), True),
        ("tensor_parallel_degree = 2\nenable_sequence_parallel = false", (1, -1, 1, 2), False),
        (
            "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"
            "context_parallel_degree = 2\ndisable_loss_parallel = false",
            (2, 4, 2, 1),
            False,
        ),
    ],
)
def test_degrees_of_parallelism_become_a_mesh(
    text: str, sizes: tuple[int, ...], is_sequence_parallel: bool
) -> None:
    mapped = read_torchtitan(f"model = {{name = 'llama3', flavor = '8B'}}\n[parallelism]\n{text}")
    assert not [entry for entry in listed(mapped) if entry.startswith("parallelism")]
    parallel: Any = graph_of(mapped).parallel
    mesh = parallel.mesh
    assert (mesh.replicate, mesh.shard, mesh.context, mesh.tensor) == sizes
    found = "fiddler:use_sequence_parallel" in mapped.directives
    assert found == is_sequence_parallel


def test_stages_and_their_schedule_become_a_pipeline() -> None:
    # Of train_configs/debug_model.toml of DeepSeek-V3, whose micro-batches have one sequence.
    text = """
        model = {name = "deepseek_v3", flavor = "671B"}
        training = {local_batch_size = 8, steps = 100}
        [parallelism]
        expert_parallel_degree = 32
        expert_tensor_parallel_degree = 1
        pipeline_parallel_degree = 4
        pipeline_parallel_schedule = "DualPipeV"
    """
    mapped = read_torchtitan(text + "pipeline_parallel_layers_per_stage = 8")
    assert {entry for entry in listed(mapped) if entry.startswith("parallelism")} == {
        "parallelism.pipeline_parallel_layers_per_stage"
    }
    cfg: Any = graph_of(mapped)
    mesh = cfg.parallel.mesh
    assert (mesh.pipeline, mesh.shard, mesh.expert, cfg.micro_batch_size) == (4, -1, 32, 1)
    assert cfg.step.schedule.name == "dual_pipe_v"
    # Unless a file says otherwise, the weights of a pipeline stay gathered.
    always = read_torchtitan(text + 'fsdp_reshard_after_forward = "always"')
    assert cfg.parallel.reshards is False and graph_of(always).parallel.reshards
    # The balancing is that of the named config, and a directive that changes nothing is an error.
    assert not [one for one in mapped.directives if "use_loss_free_balancing" in one]
    with pytest.raises(ConfigError, match="pipeline_parallel_schedule 'PipeDream'"):
        read_torchtitan(text.replace("DualPipeV", "PipeDream"))


@dataclass
class Spec:
    name: str = "qwen3"
    flavor: str = "0.6B"


@dataclass
class Group:
    pattern: str = ".*"
    optimizer_name: str = "AdamW"
    optimizer_kwargs: dict[str, Any] = field(
        default_factory=lambda: {"lr": 5e-4, "betas": (0.8, 0.9), "eps": 1e-8}
    )


@dataclass
class Optimizer:
    param_groups: list[Group] = field(default_factory=lambda: [Group()])


@dataclass
class Training:
    local_batch_size: int = 8
    steps: int = 10_000
    seq_len: int = 2048
    gc_freq: int = 50


class FullAC:
    @dataclass
    class Config:
        """Recomputes all blocks."""

        early_stop: bool = False


@dataclass
class Run:
    """In the form of what torchtitan's registries return since 2026."""

    model_spec: Spec = field(default_factory=Spec)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: Training = field(default_factory=Training)
    activation_checkpoint: Any = field(default_factory=FullAC.Config)
    dump_folder: str = "out"


def test_a_dataclass_is_read_as_a_file_is() -> None:
    run = Run(training=Training(steps=300, seq_len=64))
    mapped = read_torchtitan(run)
    assert listed(mapped) == {"training.local_batch_size", "optimizer.weight_decay"}
    cfg = graph_of(mapped)
    assert (cfg.num_steps, cfg.seq_len, cfg.optimizer.lr) == (300, 64, 5e-4)
    assert tuple(cfg.optimizer.betas) == (0.8, 0.9)
    assert cfg.model.recompute is not None
    changed = dataclasses.replace(run, training=Training(gc_freq=7), activation_checkpoint=None)
    mapped = read_torchtitan(changed)
    assert {"training.gc_freq"} <= listed(mapped)
    assert graph_of(mapped).model.recompute is None


@dataclass
class TrainingInTokens:
    num_tokens_per_microbatch_per_dp_rank: int = 16384
    num_tokens_per_train_step: int = -1
    max_context_length: int = 2048
    steps: int = 10_000


class CrossEntropyLoss:
    @dataclass
    class Config:
        """Of the next token."""

        global_vocab_size: int = 0


@dataclass
class Chunked:
    loss_fn: Any = field(default_factory=lambda: CrossEntropyLoss.Config(7))


@dataclass
class RunInTokens(Run):
    training: Any = field(default_factory=TrainingInTokens)
    loss: Any = None


@pytest.mark.parametrize(
    ("training", "sizes", "unmapped"),
    [
        ({}, (2048, 8, 8), {"training.local_batch_size"}),
        (
            {"max_context_length": 512, "num_tokens_per_microbatch_per_dp_rank": 1024},
            (512, 2, 2),
            {"training.local_batch_size"},
        ),
        ({"max_context_length": 4096, "num_tokens_per_train_step": 2**18}, (4096, 4, 64), set()),
        (
            {"num_tokens_per_microbatch_per_dp_rank": 3000},
            (2048, 1, 1),
            {"training.local_batch_size", "training.num_tokens_per_microbatch_per_dp_rank"},
        ),
    ],
)
def test_sizes_of_batches_in_tokens(
    training: dict[str, int], sizes: tuple[int, ...], unmapped: set[str]
) -> None:
    mapped = read_torchtitan(RunInTokens(training=TrainingInTokens(**training), loss=Chunked()))
    cfg = graph_of(mapped)
    assert (cfg.seq_len, cfg.micro_batch_size, cfg.batch_size) == sizes
    assert listed(mapped) == {*unmapped, "optimizer.weight_decay"}


REGISTRY = """
from tests.interop.test_torchtitan import Run, Training

def small():
    return Run(training=Training(steps=300, seq_len=64))

SIZE = 3
"""


def test_the_command_for_a_file_or_a_function_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ownregistry.py").write_text(REGISTRY)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = Run(training=Training(steps=300, seq_len=64))
    assert command.main(["ownregistry.small"]) == 0
    printed = capsys.readouterr().out.replace("\\\n", "")
    mapped = read_torchtitan(run)
    flags = [f"--config={one}" for one in mapped.directives]
    assert shlex.split(printed, comments=True) == ["python", "train.py", *flags]
    assert [line[2:] for line in printed.splitlines() if line[0] == "#"] == mapped.unmapped
    (tmp_path / "levanter.yaml").write_text("model: {type: llama}\ntrainer: {seed: 7}\n")
    assert command.main([str(tmp_path / "levanter.yaml")]) == 0
    assert "--config=set:seed=7" in capsys.readouterr().out
    for name in ("ownregistry.SIZE", "ownregistry", "nothing.at.all"):
        with pytest.raises(ConfigError, match=name):
            command.main([name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nsteps = 1", "is no training config: it has no model"),
        ("model = {name = 'flux'}", "no equivalent of model.name 'flux'. There are"),
        (
            "model = {name = 'llama3', flavor = '9B'}",
            "no equivalent of model.flavor '9B'. There are 1B",
        ),
        ("model = {}\ntraining = {steps = 'x'}", "training.steps is x, but must be int"),
    ],
)
def test_wrong_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_torchtitan(text)
