"""Compiled blocks, in processes without type checks: same numbers, few compilations."""

import os
from pathlib import Path

import fiddle as fdl
import pytest
import torch
from forked import run_program

from fidgpt.configs import debug
from fidgpt.fiddlers import use_compile, use_recompute
from fidgpt.model import Block, Compile, MachineError
from fidgpt.model.linear import require_machine
from fidgpt.model.wrappers import Compiled

PROGRAM = """
import sys
import torch
from torch._dynamo.utils import counters
from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.fiddlers import use_compile, use_moe
from fidgpt.model import Block, Compile, materialize, wrappers
from fidgpt.model.reports import collecting
from fidgpt.train.loss import NextToken

def results(*names, layers, compiling):
    cfg = debug()
    cfg.model.num_layers = layers
    for name in names:
        getattr(fiddlers, name)(cfg)
    if compiling:
        use_compile(cfg)
        for block in cfg.model.blocks:
            block.backend = "aot_eager"
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    torch.manual_seed(0)
    batch = torch.randint(0, 257, (2, 33))
    with collecting() as reports:
        loss = NextToken(trainer.model, trainer.loss).train()(batch)
    loss.backward()
    told = [*reports.metrics.values(), *reports.tallies.values()]
    return [loss, *told, *(p.grad for p in trainer.model.parameters())]

for names in [(), ("use_recompute",), ("use_moe", "use_selective_recompute")]:
    counts = []
    for layers in (3, 6):
        torch._dynamo.reset()
        counters.clear()
        wrappers._compiled.cache_clear()
        pairs = zip(
            results(*names, layers=layers, compiling=False),
            results(*names, layers=layers, compiling=True),
            strict=True,
        )
        assert all((a - b).float().norm() <= 1e-5 * a.float().norm() for a, b in pairs), names
        counts.append(counters["stats"]["unique_graphs"])
        assert not counters["graph_break"], counters["graph_break"]
    assert counts[0] == counts[1] <= 2, (names, counts)

class Nothing(torch.nn.Module):
    def forward(self, x, layout=None):
        return x

nothing = Nothing()
make = lambda: Block(attention_norm=nothing, attention=nothing, mlp_norm=nothing, mlp=nothing)
block = Compile(make, backend="eager")()
counters.clear()
for length in range(1, 11):
    block(torch.ones(1, length, 3, requires_grad=True), None)
assert counters["stats"]["unique_graphs"] == 10, counters["stats"]
"""


def test_compiled_blocks_compute_the_same_and_are_compiled_once_for_all_layers(tmp_path: Path):
    run_program(PROGRAM, folder=tmp_path)


def plain() -> Block:
    nothing = torch.nn.Identity()
    return Block(attention_norm=nothing, attention=Passing(), mlp_norm=nothing, mlp=nothing)


class Passing(torch.nn.Module):
    def forward(self, x, layout):
        return x


def test_without_a_compiler_the_first_step_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    block = Compile(plain, mode="default")()
    x = torch.ones(1, 2, 3, requires_grad=True)
    with pytest.raises(MachineError, match=r"no C\+\+ compiler here \(looked for no-such-compiler"):
        block(x, None)
    with pytest.raises(MachineError, match=r"no C\+\+ compiler"):
        require_machine(block, device=x.device)
    require_machine(Compile(plain, backend="aot_eager")(), device=x.device)
    assert torch.equal(block.eval()(x, None), 4 * x)  # nothing is compiled where nothing learns


def test_what_is_compiled_is_kept_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    block = Compile(plain, mode="max-autotune")()
    assert isinstance(block, Compiled)
    block(torch.ones(1, 2, 3), None)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")


def test_a_way_of_compiling_may_be_named() -> None:
    cfg = debug()
    use_compile(cfg, mode="reduce-overhead")
    use_recompute(cfg)
    (block,) = cfg.model.blocks
    assert (fdl.get_callable(block), block.mode) == (Compile, "reduce-overhead")
    use_compile(cfg)
    assert "mode" not in fdl.ordered_arguments(cfg.model.blocks[0])
