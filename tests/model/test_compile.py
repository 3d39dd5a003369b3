"""The parts with gradients of their own under torch.compile, in a process without type checks."""

from pathlib import Path

from forked import run_program

PROGRAM = """
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
results = []
for module in (block, torch.compile(block, backend="aot_eager", fullgraph=True)):
    out = module(x)
    results.append([out, *torch.autograd.grad(out.float().square().sum(), [*block.parameters()])])
for eager, compiled in zip(*results, strict=True):
    assert (eager - compiled).norm() <= 2e-2 * eager.norm()
"""


def test_a_block_compiles_as_one_graph(tmp_path: Path):
    run_program(PROGRAM, folder=tmp_path)
