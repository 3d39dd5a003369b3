"""Meshes: their sizes, who reads which rows, and how they are refused."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
import torch.distributed as dist
from forked import Python
from small_models import shrunk, small_block, small_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fidgpt import configs, data, fiddlers, graph, model, tags, train
from fidgpt.parallel import Mesh, MeshParallel, ParallelError, TensorParallel, data_parallel, linear
from fidgpt.processes import Processes
from fidgpt.runs.building import build_trainer
from fidgpt.train.device import cluster_at_hand
from fidgpt.train.estimates.facts import facts_of
from fidgpt.train.estimates.summary_text import summary_text


def test_an_axis_takes_the_processes_that_are_left() -> None:
    mesh = Mesh(replicate=-1, shard=2, tensor=4).over(48)
    sizes = {name: size for name, size in mesh.sizes.items() if size > 1}
    assert sizes == {"replicate": 6, "shard": 2, "tensor": 4}
    assert (mesh.size, mesh.data_size) == (48, 12)
    assert Mesh().over(1) == Mesh()


@pytest.mark.parametrize(
    ("mesh", "world_size", "message"),
    [
        (Mesh(shard=2, tensor=2), 6, "shard=2, tensor=2 takes 4 processes, and the run has 6"),
        (Mesh(shard=-1, tensor=4), 6, "takes a multiple of 4 processes, and the run has 6"),
        (Mesh(shard=-1, expert=4), 6, "expert=4 must divide the 6 .* 3, 6, or set shard=24"),
    ],
)
def test_processes_fill_a_mesh(mesh: Mesh, world_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mesh.over(world_size)


def test_the_fewest_processes_have_those_that_are_borrowed() -> None:
    assert Mesh(shard=-1, tensor=2).least_size == 2
    # 32 processes share experts: 16 of shard x 2 of context, in each of four stages.
    assert Mesh(pipeline=4, shard=-1, context=2, expert=32).least_size == 128


def test_sizes_are_tags_that_a_resumed_run_may_change(cfg: fdl.Config) -> None:
    cfg.batch_size = 4
    fiddlers.use_mesh(cfg, shard=2)
    graph.set_tag(cfg, tags.ReplicateSize, 2)
    assert build_trainer(cfg).parallel.planned_size == 4
    fiddlers.use_mesh(cfg, shard=1)  # the other sizes and the parts of the axes stay
    assert build_trainer(cfg).parallel.planned_size == 2
    assert tags.ShardSize.may_change == "restart"


def test_a_mesh_of_one_process_computes_as_without_a_mesh(cfg: fdl.Config) -> None:
    def made(cfg: fdl.Config) -> tuple[nn.Module, dict[str, Any]]:
        trainer = build_trainer(cfg)
        with trainer.parallel:
            state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
            tokens = torch.arange(4 * (trainer.seq_len + 1)).view(4, -1) % 256
            return state.module, dict(trainer.update(state, data.Batch(tokens)))

    fiddlers.use_float32(cfg)
    cfg.batch_size = 4
    (plain, expected), _ = made(cfg), fiddlers.use_mesh(cfg)
    fiddlers.use_sequence_parallel(cfg)
    fiddlers.use_chunked_sums(cfg)
    fiddlers.use_ulysses(cfg)
    alone, row = made(cfg)
    assert [type(one) for one in alone.modules()] == [type(one) for one in plain.modules()]
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in alone.modules())
    assert not any("shards" in vars(one) for one in alone.parameters())
    assert not torch.distributed.is_initialized()
    assert (row["loss"], row["grad_norm"]) == (expected["loss"], expected["grad_norm"])


def test_an_axis_without_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="mesh.tensor=2 needs a part .* tensor is None"):
        MeshParallel(Mesh(tensor=2))


def test_a_process_that_ends_while_others_connect_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*mesh: Any, **options: Any) -> None:
        raise dist.DistError("Failed to recv, got 0 bytes.")

    monkeypatch.setattr(data_parallel, "places_on", connect)
    with pytest.raises(ParallelError, match="another process of the run is gone: Failed to recv"):
        MeshParallel(Mesh()).__enter__()


class Own(nn.Module):
    """A component that declares nothing."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_dim, hidden_dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Changed(model.SwiGLU):
    """A component that inherits a declaration, and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(-1)


def test_components_without_a_declaration_are_not_divided() -> None:
    with torch.device("meta"):
        blocks = [partial(small_block, mlp=kind) for kind in (Own, Changed, model.SwiGLU)]
        whole = small_model(*blocks, num_layers=3)
    assert TensorParallel().undivided(whole) == [
        "blocks.0.mlp",
        *(f"blocks.1.mlp.{n}" for n in ("gate", "up", "down")),
    ]


@pytest.mark.parametrize("name", ["gpt2_124m", "olmo2_7b", "gpt_oss_20b", "deepseek_v3"])
def test_every_family_is_divided_but_for_its_routers(name: str) -> None:
    whole = build_trainer(shrunk(name)).model
    assert not [path for path in TensorParallel().undivided(whole) if not path.endswith(".router")]


@pytest.mark.parametrize(
    ("sizes", "change", "alike"),
    [
        ({}, None, True),
        ({"replicate": 2}, None, False),
        ({"tensor": 2}, fiddlers.use_sequence_parallel, False),
        ({"tensor": 2}, lambda cfg: graph.set_tag(cfg, tags.Dropout, 0.1), False),
        ({"replicate": 2}, lambda cfg: setattr(cfg.model, "dropout", 0.0), True),
    ],
)
def test_the_summary_shows_where_dropout_is_not_that_of_one_process(
    cfg: fdl.Config, sizes: dict[str, int], change: Callable[[fdl.Config], object], alike: bool
) -> None:
    cfg.batch_size, cfg.model.dropout = 4, 0.1
    cfg.model.blocks[0].attention.dropout = cfg.model.blocks[0].dropout = 0.0
    fiddlers.use_mesh(cfg, **sizes)
    if change is not None:
        change(cfg)
    trainer = build_trainer(cfg)
    machine = cluster_at_hand(trainer.parallel, trainer.precision.dtype)
    text = summary_text(trainer, facts_of(trainer, machine), color=False)
    assert ("other elements than in one process" in text) != alike


class Products(TorchDispatchMode):
    """Records when matrices are multiplied."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.events.append("compute")
        return func(*args, **(kwargs or {}))


def recorded(events: list[str], change: Callable[[Tensor, int | None], Tensor]) -> Any:
    """A collective that only records when its tensor is sent and waited for."""

    def begin(x: Tensor, axis: Processes, dim: int | None) -> Callable[[], Tensor]:
        events.append("send")
        return lambda: (events.append("wait"), change(x, dim))[1]

    return begin


def test_a_chunk_is_sent_while_the_next_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(linear, "begin_sum", recorded(events, lambda x, dim: 2 * x))
    projection = nn.Linear(4, 3)
    x = torch.randn(2, 6, 4, requires_grad=True)
    expected = 2 * projection(x)
    linear.sum_in_chunks(projection, Processes(2), num_chunks=3, on_part=False)
    with Products(events):
        summed = projection(x)
    assert events == ["compute", "send"] * 3 + ["wait"] * 3
    torch.testing.assert_close(summed, expected)
    summed.sum().backward()
    torch.testing.assert_close(x.grad, projection.weight.sum(0).expand(2, 6, 4))


@pytest.mark.slow
def test_an_error_under_torchrun_is_printed_once(tmp_path: Path) -> None:
    launch = ["-m", "fidgpt.launch", "--preload", "--nproc-per-node=2", "--standalone"]
    flags = ["--config=config:debug", "--config=fiddler:use_mesh(shard=4)"]
    process = Python(
        *(*launch, "-m", "fidgpt.cli.train", *flags),
        output=tmp_path / "output",
        directory=tmp_path,
        environment=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.end(seconds=120) == 2, process.output
    assert process.output.count("error: ") == 1, process.output
    assert "takes 4 processes, and the run has 2" in process.output


@pytest.fixture
def cfg() -> fdl.Config:
    return configs.debug()
