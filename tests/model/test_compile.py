"""The parts with gradients of their own under torch.compile, in a process without type checks."""

from pathlib import Path

from forked import run_program

PROGRAM = """
import sys

import torch
from fidgpt.model import Attention, Block, RMSNorm, RoPE, SwiGLU

torch.manual_seed(0)
block = Block(
    attention_norm=RMSNorm(hidden_dim=16),
    attention=Attention(hidden_dim=16, head_dim=8, rope=RoPE(head_dim=8)),
    mlp_norm=RMSNorm(hidden_dim=16),
    mlp=SwiGLU(hidden_dim=16),
).bfloat16()
x = torch.randn(2, 5, 16, dtype=torch.bfloat16)


def check() -> None:
    results = []
    for module in (block, torch.compile(block, backend="aot_eager", fullgraph=True)):
        out = module(x)
        loss = out.float().square().sum()
        results.append([out, *torch.autograd.grad(loss, [*block.parameters()])])
    for eager, compiled in zip(*results, strict=True):
        assert (eager - compiled).norm() <= 2e-2 * eager.norm()


check()  # attention is traced, and its weights are kept
sys.modules["fidgpt.model.kernels"]._KEEP_UP_TO = 4
torch.compiler.reset()
check()  # attention is one operator, that computes its weights once more
operator = torch.ops.fidgpt.blockwise_attention.default
queries = torch.randn(3, 2, 9, 8, dtype=torch.float64, requires_grad=True)
keys = torch.randn(9, 3, 8, dtype=torch.float64).transpose(0, 1).requires_grad_()
torch.library.opcheck(operator, (queries, keys, keys, 0.3, 4))
"""


def test_a_block_compiles_as_one_graph(tmp_path: Path):
    run_program(PROGRAM, folder=tmp_path)
