"""torch.compile, activation checkpointing and float8 of blocks."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl
import pytest
import torch
from forked import run_program
from small_models import FAMILIES, started
from torch import Tensor, nn

from fidgpt import configs, train
from fidgpt import model as lm
from fidgpt.fiddlers import (
    share_blocks,
    use_document_mask,
    use_float8,
    use_moe,
    use_recompute,
    use_selective_recompute,
    use_sinks,
    use_softcap,
)
from fidgpt.model.linear import require_machine
from fidgpt.model.reports import collecting
from fidgpt.model.wrappers import InFloat8, Recomputed
from fidgpt.parallel import Mesh
from fidgpt.plan import Planner
from fidgpt.runs.building import build_trainer
from fidgpt.train.device import cluster_at_hand
from fidgpt.train.loss import NextToken

PROGRAM = """
import sys
from functools import partial

import torch
from fidgpt.model import Attention, RoPE
from small_models import filled, small_block

block = filled(small_block(partial(Attention, rope=RoPE(head_dim=8)), hidden_dim=16)).bfloat16()
x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0)).bfloat16()


def check() -> None:
    results = []
    for module in (block, torch.compile(block, backend="aot_eager", fullgraph=True)):
        out = module(x)
        loss = out.float().square().sum()
        results.append([out, *torch.autograd.grad(loss, [*block.parameters()])])
    for eager, compiled in zip(*results, strict=True):
        assert (eager - compiled).norm() <= 2e-2 * eager.norm()


check()  # attention is traced, and its weights are kept
sys.modules["fidgpt.model.cpu.attention"].KEEP_UP_TO = 4
torch.compiler.reset()
check()  # attention is one operator that recomputes its weights
operator = torch.ops.fidgpt.blockwise_attention.default
queries = torch.randn(2, 3, 2, 9, 8, dtype=torch.float64, requires_grad=True)
keys = torch.randn(2, 9, 3, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
documents = torch.tensor([[0] * 5 + [1] * 4, [0] * 9])
visible = (documents[:, None, :, None] == documents[:, None, None]).tril()
for masks in ((None, None, 0.3, 4, False), (visible, documents, 0.3, 4, False)):
    torch.library.opcheck(operator, (queries, keys, keys, *masks))
"""


@pytest.mark.slow
def test_a_block_compiles_as_one_graph(tmp_path: Path):
    run_program(PROGRAM, folder=tmp_path)


BLOCK_PROGRAM = """
import torch
from torch._dynamo.utils import counters
from fidgpt import fiddlers
from fidgpt.parallel import Mesh
from fidgpt.plan import Planner
from fidgpt.runs.building import build_trainer
from fidgpt.train.device import cluster_at_hand
from fidgpt.configs import debug
from fidgpt.model import wrappers
from fidgpt.model.reports import collecting
from fidgpt.train.loss import NextToken
from small_models import started

def results(*names, compiling):
    cfg = debug()
    cfg.model.num_layers = 6
    for name in names:
        getattr(fiddlers, name)(cfg)
    if compiling:
        fiddlers.use_compile(cfg)
        cfg.model.compile.backend = "aot_eager"
    trainer = build_trainer(cfg)
    started(trainer.model)
    torch.manual_seed(0)
    batch = torch.randint(0, 257, (2, 33))
    with collecting() as reports:
        loss = NextToken(trainer.model, trainer.loss).train()(batch)
    loss.backward()
    reported = [*reports.metrics.values(), *reports.tallies.values()]
    return [loss, *reported, *(p.grad for p in trainer.model.parameters())]

for line in LINES:
    torch._dynamo.reset()
    counters.clear()
    wrappers._compiled.cache_clear()
    eager, compiled = (results(*line.split(), compiling=compiling) for compiling in (False, True))
    pairs = zip(eager, compiled, strict=True)
    assert all((a - b).float().norm() <= 1e-5 * a.float().norm() for a, b in pairs), line
    assert not counters["graph_break"], counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1, (line, counters["stats"])  # of six layers
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        ["", "use_moe use_expert_capacity use_recompute"],
        pytest.param(["use_recompute", "use_moe use_selective_recompute"], marks=pytest.mark.long),
    ],
    ids=["few", "more"],
)
def test_compiled_blocks_compute_the_same_and_are_compiled_once_for_all_layers(
    lines: list[str], tmp_path: Path
):
    run_program(f"LINES = {lines}\n{BLOCK_PROGRAM}", folder=tmp_path)


GRAPHS = {
    "dense": ["require_one('gpt2_124m')", "require_few('debug', fiddlers.use_mtp)"],
    "mixture": ["require_few('mixtral_8x7b')"],
    "masks": ["require_flex('debug')", "require_fused('debug')"],
}
EVERY_GRAPH = {name: [f"require_one({name!r})", f"require_few({name!r})"] for name in FAMILIES} | {
    "changed": [
        f"require_few('debug', fiddlers.{name})"
        for name in ("use_moe", "use_mla", "use_document_mask", "use_alibi", "use_recompute")
    ],
    "flex": [f"require_flex({name!r})" for name in ("gpt_oss_20b", "gemma3_270m", "qwen3_0_6b")],
    "schedules": ["require_schedules()"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        *GRAPHS.values(),
        *(pytest.param(one, marks=pytest.mark.long) for one in EVERY_GRAPH.values()),
    ],
    ids=[*GRAPHS, *EVERY_GRAPH],
)
def test_models_are_one_graph_and_blocks_are_compiled_once_for_a_size(
    lines: list[str], tmp_path: Path
) -> None:
    program = ["from compiled_graphs import *", "from fidgpt import fiddlers", *lines]
    run_program("\n".join(program), folder=tmp_path)


class Passing(nn.Module):
    def forward(self, x, ctx=None):
        return x


def plain() -> lm.Block:
    nothing = Passing()
    return lm.Block(attention_norm=nothing, attention=nothing, mlp_norm=nothing, mlp=nothing)


def test_a_missing_compiler_is_reported(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    block = lm.Compile(mode="default")(plain(), layer=0)
    x = torch.ones(1, 2, 3, requires_grad=True)
    with pytest.raises(lm.MachineError, match=r"none was found \(tried no-such-compiler"):
        block(x, None)
    with pytest.raises(lm.MachineError, match=r"needs a C\+\+ compiler"):
        require_machine(block, device=x.device)
    require_machine(lm.Compile(backend="aot_eager")(plain(), layer=0), device=x.device)
    assert torch.equal(block.eval()(x, None), 4 * x)  # evaluation compiles nothing


Fiddler = Callable[[fdl.Config], None]


class Pass(NamedTuple):
    """What a forward and a backward pass leave, and how much was kept between them."""

    loss: Tensor
    gradients: list[Tensor]
    reports: Any
    saved: int
    predicted: int


def model_of(*fiddlers: Fiddler) -> Any:
    """A trainer with dropout whose model has values."""
    cfg = configs.debug()
    cfg.model.num_layers = 4
    cfg.model.dropout = 0.1
    for fiddler in fiddlers:
        fiddler(cfg)
    trainer = build_trainer(cfg)
    started(trainer.model)
    return trainer


@functools.cache
def passed(*fiddlers: Fiddler) -> Pass:
    trainer = model_of(*fiddlers)
    torch.manual_seed(1)
    batch = torch.randint(0, 257, (2, 33))
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), collecting() as reports:
        loss = NextToken(trainer.model, trainer.loss).train()(batch)
    loss.backward()
    reported = [x.tolist() for x in (*reports.metrics.values(), *reports.tallies.values())]
    gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    plans = Planner(trainer, cluster_at_hand(trainer.parallel, torch.float32))
    planned = plans._trace(plans.setting(Mesh())).kept
    return Pass(loss, gradients, reported, sum(saved.values()), planned)


def every_other(cfg: fdl.Config) -> None:
    """Half of the blocks."""
    use_recompute(cfg, every=2)


def masked(cfg: fdl.Config) -> None:
    """Attention by blocks within documents, with caps and sinks."""
    for change in (use_document_mask, use_softcap, use_sinks):
        change(cfg)
    for block in cfg.model.blocks:
        block.attention.dropout = 0.0  # with which all scores are computed
        block.attention.kernel = fdl.Partial(lm.blockwise, block_size=8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [(), (use_moe,), (masked,)], ids=["dense", "mixture", "masked"])
@pytest.mark.parametrize("again", [use_recompute, every_other, use_selective_recompute])
def test_recomputation_changes_nothing_and_reports_once(kind, again: Fiddler) -> None:
    once, twice = passed(*kind), passed(*kind, again)
    assert torch.equal(twice.loss, once.loss)
    assert all(map(torch.equal, once.gradients, twice.gradients))
    assert twice.reports == once.reports


def test_recomputation_saves_memory() -> None:
    nothing, half, full = passed(), passed(every_other), passed(use_recompute)
    selective = passed(use_selective_recompute)
    assert full.saved < 0.4 * nothing.saved
    assert full.saved < half.saved < nothing.saved
    assert full.predicted < 0.15 * nothing.predicted
    # What operations keep by themselves is not saved through autograd, and predicted all the same.
    assert full.predicted < selective.predicted < 0.6 * nothing.predicted


@pytest.mark.slow
def test_a_block_stays_of_its_class_and_keeps_its_names() -> None:
    plain, model = model_of().model, model_of(use_recompute).model
    assert [*dict(model.named_parameters())] == [*dict(plain.named_parameters())]
    assert all(isinstance(block, lm.Block | Recomputed) for block in model.blocks)
    assert len({type(block) for block in model.blocks}) == 1
    tokens = torch.arange(8)[None]
    with torch.inference_mode():
        assert torch.equal(model.eval()(tokens), plain.eval()(tokens))
    shared = model_of(share_blocks, use_recompute).model.blocks
    assert len({id(block) for block in shared}) == 1 and isinstance(shared[0], Recomputed)


def maps() -> nn.Module:
    return nn.ModuleDict({
        "fits": lm.Linear(32, 16),
        "odd": lm.Linear(32, 15),
        "adapted": lm.LoRALinear(32, 16, rank=2),
        "attention": lm.Attention(hidden_dim=32, head_dim=16),
        "mlp": lm.SwiGLU(hidden_dim=32, ffn_dim=48),
    })  # fmt: skip


def test_float8_converts_linears_that_fit_and_needs_a_gpu():
    names = [*maps().state_dict()]
    block = lm.Float8()(maps(), layer=0)
    assert [*block.state_dict()] == names
    converted = {name for name, part in block.named_modules() if isinstance(part, InFloat8)}
    assert {"fits", "attention.query", "mlp.down"} <= converted
    assert not {"odd", "adapted"} & converted
    with pytest.raises(lm.MachineError, match=r"a cpu does not support float8.*capability 8\.9"):
        block.get_submodule("fits")(torch.ones(2, 32))
    on_meta = lm.Float8()(maps().to("meta"), layer=0)
    assert on_meta.get_submodule("fits")(torch.ones(2, 32, device="meta")).shape == (2, 16)


def test_a_run_that_this_machine_cannot_compute_leaves_no_directory(tmp_path):
    cfg = configs.debug()
    use_float8(cfg)
    with pytest.raises(lm.MachineError, match="does not support float8"):
        build_trainer(cfg).train(train.RunDirectory(tmp_path / "run", texts={}))
    assert not (tmp_path / "run").exists()
