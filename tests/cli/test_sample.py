"""The command `sample` on a run of two steps: several prompts, ends, scores, mistakes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.cli import sample, train
from fidgpt.train import BFloat16

Command = Callable[..., Any]


def test_texts_go_on_with_their_prompts_and_scores_are_likelihoods(
    command: Command, run: str
) -> None:
    status, out, err = command(sample.main, run, "--prompt=def ", "--num_tokens=5", "--seed=3")
    assert (status, err) == (0, "")
    assert out.startswith("def ")
    same = ["--num_tokens=5", "--seed=3", "--top_p=0.9", "--min_p=0.01", "--repetition_penalty=1.2"]
    both = command(sample.main, run, "--prompt=def ", "--prompt=class A", *same).out
    first, second = both.split("\n-- 2 of 2 --\n")
    assert first.startswith("def ")
    assert second.startswith("class A")
    out = command(sample.main, run, "--prompt=", "--num_tokens=400", "--stop=e", "--top_k=0").out
    assert "e" not in out
    out = command(sample.main, run, "--score=dé").out
    assert re.search(r"3 tokens, 3 bytes: perplexity [\d.]+, [\d.]+ nats .*, [\d.]+ bits per", out)
    assert out.count("\n") == 4
    for flag, message in {
        "--score=": "--score is an empty text",
        "--stop=": "error: --stop: an empty string ends every text",
        "--stop=\udcff": "--stop is not UTF-8 text",
        "--repetition_penalty=0": "must be above 0",
    }.items():
        assert message in command(sample.main, run, flag).err


@pytest.mark.parametrize(
    ("precision", "flag", "dtype"),
    [
        ("BFloat16", "--num_tokens=2", torch.bfloat16),
        ("BFloat16", "--float32", torch.float32),
        ("BFloat16", "--score=def", torch.float32),
        ("Float32", "--num_tokens=2", torch.float32),
    ],
)
def test_a_text_is_written_as_its_run_computed(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    flag: str,
    dtype: torch.dtype,
) -> None:
    seen: list[torch.dtype] = []

    def watch(model: nn.Module) -> None:
        seen.append(next(model.parameters()).dtype)

    monkeypatch.setattr("fidgpt.train.native_precision", BFloat16)
    monkeypatch.setattr("fidgpt.model.generation.prepare_to_write", watch)
    flags = ["--config=config:debug", "--config=set:num_steps=1", "--config=set:samples=None"]
    flags += [f"--config=use:precision={precision}", f"--run_dir={tmp_path / 'run'}"]
    assert command(train.main, *flags).status == 0
    assert command(sample.main, str(tmp_path / "run"), flag).status == 0
    assert seen == [dtype]
