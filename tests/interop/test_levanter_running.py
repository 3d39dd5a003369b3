"""What a Levanter file says of texts, of machines and of who hears of a run."""

import inspect
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import bind, check_and_bind
from fidgpt.interop import Mapped, read_levanter
from fidgpt.optim import Lion
from fidgpt.parallel import DataParallel, FullyShardedDataParallel
from fidgpt.train import (
    BFloat16,
    Console,
    Float16,
    Float32,
    JSONLines,
    Profiler,
    TensorBoard,
    Trackio,
    WandB,
    native_precision,
)


def read(text: str) -> Mapped:
    return read_levanter(inspect.cleandoc(text))


def graph_of(mapped: Mapped) -> Any:
    """The bound graph, in which everything holds that is asked of a graph."""
    return check_and_bind(compose(mapped.directives, own_catalogue()))


def listed(mapped: Mapped) -> list[str]:
    names = [one.partition(":")[0] for one in mapped.unmapped]
    return [name for name in names if name != "optimizer.default_weight_decay_mask"]


@pytest.mark.parametrize(
    ("policy", "precision", "is_listed"),
    [
        ("f32", Float32, False),
        ("full", Float32, False),
        ("p=f32,c=bfloat16", BFloat16, False),
        ("compute=bfloat16,params=float32,output=bfloat16", BFloat16, False),
        ("compute=bfloat16,params=float32,output=float32", BFloat16, True),
        ("p=f32, c=F16", Float16, False),
        ("bfloat16", native_precision, True),
        ("p=bfloat16,c=bfloat16", native_precision, True),
        ("p=f32,c=f8", native_precision, True),
        ("p=f32,x=f32", native_precision, True),
    ],
)
def test_policies_of_jmp(policy: str, precision: Any, is_listed: bool) -> None:
    mapped = read(f"trainer: {{mp: '{policy}'}}")
    assert fdl.get_callable(graph_of(mapped).precision) is precision
    assert listed(mapped) == ["trainer.mp"] * is_listed


@pytest.mark.parametrize(
    ("text", "parallel", "names"),
    [
        ("fsdp_axis: embed, batch_axis: batch", FullyShardedDataParallel, []),
        ("fsdp_axis: null, tensor_parallel_axes: [mlp, heads]", DataParallel, []),
        ("axis_resources: {}, model_axis_size: 1, replica_dcn_axis_size: 1", DataParallel, []),
        ("replica_dcn_axis_size: 2", DataParallel, ["replica_dcn_axis_size"]),
        ("parameter_axis_resources: {a: b}", DataParallel, ["parameter_axis_resources"]),
    ],
)
def test_how_a_model_lies_on_devices(text: str, parallel: Any, names: list[str]) -> None:
    mapped = read(f"trainer: {{{text}}}")
    assert fdl.get_callable(graph_of(mapped).parallel) is parallel
    assert listed(mapped) == [f"trainer.{name}" for name in names]


def test_a_batch_that_depends_on_the_devices_is_listed() -> None:
    mapped = read("trainer: {train_batch_size: -1, per_device_parallelism: 4}")
    assert graph_of(mapped).micro_batch_size == 4
    assert listed(mapped) == ["trainer.train_batch_size"]


def test_trackers() -> None:
    mapped = read("""
        trainer:
          tracker:
            - {project: mine, entity: me, mode: offline, name: null, save_code: true}
            - {type: tensorboard, logdir: logs}
            - {type: trackio, project: theirs, space_id: a/b}
            - {type: json_logger}
    """)
    trackers = graph_of(mapped).trackers
    kinds = [fdl.get_callable(one) for one in trackers]
    assert kinds == [Console, JSONLines, TensorBoard, Trackio, WandB]
    assert (trackers[3].project, trackers[3].space) == ("theirs", "a/b")
    assert (trackers[4].project, trackers[4].entity, trackers[4].mode) == ("mine", "me", "offline")
    assert listed(mapped) == ["trainer.tracker[1].logdir"]


@pytest.mark.parametrize("text", ["tracker: {mode: disabled}", "wandb: {mode: disabled, tags: []}"])
def test_a_tracker_that_is_off_is_none(text: str) -> None:
    mapped = read(f"trainer: {{{text}}}")
    assert len(graph_of(mapped).trackers) == 2 and listed(mapped) == []


def test_some_steps_are_profiled() -> None:
    text = "profiler_start_step: 3, profiler_num_steps: 4"
    (profiler,) = graph_of(read(f"trainer: {{profiler: true, {text}}}")).observers
    assert fdl.get_callable(profiler) is Profiler
    assert (profiler.begin, profiler.num_steps) == (3, 4)
    assert not bind(graph_of(read(f"trainer: {{profiler: false, {text}}}"))).observers


def test_lion() -> None:
    mapped = read("optimizer: {type: lion, learning_rate: 1e-4, beta2: 0.98, epsilon: 1e-8}")
    optimizer = graph_of(mapped).optimizer
    assert fdl.get_callable(optimizer) is Lion and listed(mapped) == []
    assert (optimizer.lr, optimizer.betas, optimizer.weight_decay) == (1e-4, (0.9, 0.98), 0.1)


def test_what_an_optimizer_of_another_kind_says_is_not_told_to_adamw() -> None:
    mapped = read("optimizer: {type: sophia-h, learning_rate: 1e-4, beta1: 0.5, epsilon: 1e-3}")
    optimizer = graph_of(mapped).optimizer
    assert (optimizer.lr, optimizer.betas) == (1e-4, (0.9, 0.95))
    assert "eps" not in optimizer.__arguments__
    assert listed(mapped) == ["optimizer.type", "optimizer.beta1", "optimizer.epsilon"]


def test_text_on_this_machine_is_read_and_other_text_listed() -> None:
    mapped = read("data: {train_urls: ['my data/a, b.jsonl'], text_key: body, tokenizer: gpt2}")
    source = graph_of(mapped).data.corpus.source
    assert (source.path, source.text_field) == ("my data/a, b.jsonl", "body")
    assert listed(mapped) == ["data.tokenizer"]
    for url in ("gs://a/b.jsonl", "a/*.jsonl", "part.{1..4}.jsonl"):
        assert listed(read(f"data: {{train_urls: ['{url}']}}")) == ["data.train_urls"]
    chats = read("data: {train_urls: [a.jsonl], format: {type: chat}}")
    assert listed(chats) == ["data.train_urls", "data.format"]


def test_a_dataset_of_the_hub() -> None:
    mapped = read("data: {id: a/b, name: small, format: {type: text, text_key: body}}")
    source = graph_of(mapped).data.corpus.source
    assert (source.path, source.name, source.text_field) == ("a/b", "small", "body")
    assert listed(mapped) == []


def test_a_mixture_whose_shares_change() -> None:
    mapped = read("""
        data:
          configs:
            web: {id: a/b}
            own: {train_urls: [code/]}
            test: {validation_urls: [c.jsonl]}
          train_weights: [[0, {web: 0.8, own: 0.2}], [100, {own: 1}]]
          stop_strategy: restart
    """)
    data = graph_of(mapped).data
    assert data.streams["own"].corpus.source.path == "a/b"
    assert data.streams["own_"].corpus.source.path == "code/"
    assert data.weights == {"own": 0.8, "own_": 0.2}
    assert [(one.begin, one.weights) for one in data.stages] == [(100, {"own": 0.0, "own_": 1.0})]
    assert listed(mapped) == ["data.configs.test"]


@pytest.mark.parametrize(
    "text",
    [
        "configs: {a: {train_urls: [a.txt]}, b: {id: b/c}}, train_weights: {a: 1, b: 1}",
        "configs: {a: {train_urls: [a.txt]}}, train_weights: {a: 1, b: 1}",
        "configs: {a: {train_urls: [a.txt]}}, train_weights: [[5, {a: 1}]]",
        "configs: {a: {train_urls: [a.txt]}}, train_weights: {a: -1}",
        "configs: 7, train_weights: {a: 1}",
    ],
)
def test_other_mixtures_are_listed(text: str) -> None:
    mapped = read(f"data: {{{text}}}")
    assert graph_of(mapped)
    assert listed(mapped) == ["data.configs", "data.train_weights"]
