"""Mixtures under torch.compile and activation checkpointing: same numbers, one graph, one count."""

from pathlib import Path

from forked import run_program

PROGRAM = """
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from fidgpt.model.moe import (
    Capacity, GatedExperts, LoadBalancingLoss, MoE, RouterZLoss, SelectionBias, SoftmaxRouter,
    dropless,
)
from fidgpt.model.reports import collecting

def mixture(width, dispatch):
    bias = SelectionBias(num_experts=4)
    return MoE(
        num_experts=4,
        router=SoftmaxRouter(hidden_dim=width, num_experts=4, top_k=2, selection_bias=bias),
        experts=GatedExperts(hidden_dim=width, num_experts=4, ffn_dim=2 * width),
        dispatch=dispatch,
        balancing=[LoadBalancingLoss(), RouterZLoss()],
    )

def results(moe, call, x):
    with collecting() as reports:
        out = call(x)
    loss = out.float().square().sum() + sum(reports.losses.values())
    gradients = torch.autograd.grad(loss, [x, *moe.parameters()])
    return [out, *reports.losses.values(), reports.tallies[moe], *gradients]

def compare(width, dtype, dispatch, tolerance):
    moe = mixture(width, dispatch).to(dtype)
    x = torch.randn(2, 9, width, dtype=dtype, requires_grad=True)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(moe, backend=counter, fullgraph=True)
    eager = results(moe, moe, x)
    for call in (compiled, lambda x: checkpoint(moe, x, use_reentrant=False)):
        for one, other in zip(eager, results(moe, call, x), strict=True):
            assert (one - other).float().norm() <= tolerance * one.float().norm()
    assert counter.frame_count == 1

torch.manual_seed(0)
compare(16, torch.bfloat16, dropless, 1e-2)
compare(6, torch.float32, dropless, 1e-5)
compare(16, torch.float32, Capacity(factor=1.0), 1e-5)
"""


def test_a_mixture_compiles_as_one_graph_and_can_be_computed_again(tmp_path: Path):
    run_program(PROGRAM, folder=tmp_path)
