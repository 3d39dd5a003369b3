"""`--print=summary`: what any config would cost, on this machine or on another one."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fidgpt.cli import train
from fidgpt.train.device import machine_named
from fidgpt.train.summary_text import bytes_text, duration, magnitude

DEBUG = "--config=config:debug"
SUMMARY = "--print=summary"
BASE = "--config=config:base"
Command = Callable[..., Any]


class Averaging(nn.Module):
    """An attention that does not declare what it computes."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor, layout: object) -> Tensor:
        return (x @ x.mT).tril() @ self.project(x)


@pytest.fixture(autouse=True)
def _own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDGPT_MACHINE", "")  # put back, whatever --hardware makes of it


def rows(text: str) -> dict[str, str]:
    """The lines that are a name and a value."""
    found = (re.match(r"\s*(\S.*?)  +(.*)", line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match}


def test_the_cost_of_a_run(command: Command) -> None:
    done = command(train.main, DEBUG, SUMMARY)
    assert (done.status, done.err) == (0, "")
    shown = rows(done.out)
    assert shown["parameters"].startswith("41,152 ")
    assert shown["shared"] == "embedding.weight = unembedding.weight"
    assert shown["tokens"] == "640 = 10 steps of 64"
    assert shown["activations"].endswith(" of 2 sequences")
    assert {"optimizer", "gradients", "cache of generation", "time"} <= {*shown}
    assert "does not declare" not in done.out and "average of the weights" not in shown
    averaged = rows(command(train.main, DEBUG, "--config=fiddler:use_ema", SUMMARY).out)
    assert averaged["average of the weights"] == shown["weights"]
    assert re.search(r"^attention +2 x Attention ", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_named_machine_need_not_be_there(command: Command) -> None:
    eight, one = (
        rows(command(train.main, BASE, SUMMARY, f"--hardware={name}").out)
        for name in ("h100x8", "h100x1")
    )
    assert eight["device"].startswith("8 x cuda, ")
    assert eight["device"].endswith(" 7.91 PFLOP/s at best")
    assert (eight["activations"][-10:], one["activations"][-12:]) == ("1 sequence", " 8 sequences")
    assert eight["FLOPs"] == one["FLOPs"]
    done = command(train.main, DEBUG, SUMMARY, "--hardware=abacusx4")
    assert done.status == 2 and "'abacus' of 'abacusx4'" in done.err and "h100" in done.err
    four = machine_named("rtx4090x4", torch.bfloat16)
    assert (four.world_size, four.peak_flops) == (4, 4 * 165e12)
    assert machine_named("cpux1", torch.float32).device.type == "cpu"


def test_an_attention_that_declares_nothing_is_counted_and_named(command: Command) -> None:
    part = f"{__name__}.Averaging(hidden_dim=32)"
    use = f"--config=use:model.blocks[0].attention={part}"
    done = command(train.main, f"--allow={__name__}", DEBUG, use, SUMMARY)
    assert done.status == 0, done.err
    out = " ".join(done.out.split())
    assert "blocks.*.attention: Averaging does not declare its operations" in out


def test_a_large_model_is_counted_without_memory(command: Command) -> None:
    """As wide as Llama 3.1 405B (arXiv:2407.21783, table 3), with a tenth of its layers."""
    layers, hidden, ffn, vocab = 12, 16384, 53248, 128256
    sizes = {"hidden_dim": hidden, "num_layers": layers, "blocks[0].mlp.ffn_dim": ffn}
    flags = [f"--config=set:model.{name}={size}" for name, size in sizes.items()]
    heads = ["--config=tag:HeadDim=128", "--config=set:**.num_kv_heads=8"]
    tables = [f"--config=tag:VocabSize={vocab}", "--config=set:seq_len=8192"]
    done = command(train.main, BASE, *flags, *heads, *tables, SUMMARY, "--hardware=h100x8")
    assert done.status == 0, done.err
    layer = 2 * hidden**2 + 2 * hidden * 8 * 128 + 3 * hidden * ffn + 2 * hidden
    total = layers * layer + hidden + vocab * hidden
    shown = rows(done.out)
    assert shown["parameters"].startswith(f"{total:,} ")
    assert shown["weights"] == bytes_text(4 * total)
    assert shown["optimizer"] == bytes_text(8 * total)


def test_numbers_have_three_digits() -> None:
    assert bytes_text(999_600) == "1 MB"
    assert bytes_text(1_523_000_000) == "1.52 GB"
    assert magnitude(0, ["", "k"]) == "0"
    assert duration(0.5) == "less than a second"
    assert duration(100) == "1.7 minutes"
    assert duration(5000 * 31_557_600) == "5,000 years"
