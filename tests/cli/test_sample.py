"""The command `sample` on a run of two steps: several prompts, ends, scores, mistakes."""

import re
import shutil
from pathlib import Path

import pytest
from absl.flags import FLAGS

from fidgpt.cli import plot, sample, train
from fidgpt.data import ByteTokenizer

from .conftest import Command

pytestmark = pytest.mark.slow

SHORT = ("--config=config:debug", "--config=set:samples=None")


def test_paths_of_flags_begin_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert plot.main and sample.main and train.main  # which define them
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("draft", "out", "resume", "run_dir"):
        assert FLAGS[name].parser.parse("~/runs") == f"{tmp_path}/runs"


def test_texts_continue_prompts_and_scores_are_likelihoods(command: Command, run: str) -> None:
    status, out, err = command(sample.main, run, "--prompt=def ", "--num_tokens=5", "--seed=3")
    assert (status, err) == (0, "")
    assert out.startswith("def ")
    same = ["--num_tokens=5", "--seed=3", "--top_p=0.9", "--min_p=0.01", "--repetition_penalty=1.2"]
    both = command(sample.main, run, "--prompt=def ", "--prompt=class A", *same).out
    first, second = both.split("\n-- 2 of 2 --\n")
    assert first.startswith("def ") and second.startswith("class A")
    out = command(sample.main, run, "--prompt=", "--num_tokens=400", "--stop=e", "--top_k=0").out
    assert "e" not in out
    out = command(sample.main, run, "--score=dé").out
    assert re.search(r"3 tokens, 3 bytes: perplexity [\d.]+, [\d.]+ nats .*, [\d.]+ bits per", out)
    assert out.count("\n") == 4
    for flag, message in {
        "--repetition_penalty=0": "must be above 0",
        "--averaged": f"{run} keeps no average of its weights in this checkpoint. Remove the flag",
    }.items():
        assert message in command(sample.main, run, flag).err


def test_a_draft_writes_the_same_text(command: Command, run: str, tmp_path: Path) -> None:
    flags = ["--prompt=def ", "--prompt=a", "--num_tokens=21", "--temperature=0", "--float32"]
    alone = command(sample.main, run, *flags)
    status, out, err = command(sample.main, run, *flags, f"--draft={run}", "--draft_tokens=3")
    assert (status, out) == (0, alone.out)
    assert err == f"30 of 30 tokens that {run} proposed were accepted (100%).\n"
    other = tmp_path / "other"
    shutil.copytree(run, other)
    ByteTokenizer(special_tokens=["<mark>"]).save(other / "tokenizer.json")
    err = command(sample.main, run, f"--draft={other}").err
    assert err.startswith(f"error: --draft={other} has another tokenizer than {run}: name a model")
    err = command(sample.main, run, "--draft=none/such", "--num_tokens=1").err
    assert err.startswith("error: none/such")
    assert "remove one" in command(sample.main, run, "--score=a", f"--draft={run}").err
    assert "without --draft." in command(sample.main, run, "--draft_tokens=3").err


def test_the_average_is_read_and_not_the_last_weights(command: Command, tmp_path: Path) -> None:
    """With beta 0 they are the same; with nearly 1, the average is what the run began with."""
    last, first = str(tmp_path / "last"), str(tmp_path / "first")
    for run, beta in {last: 0.0, first: 0.999999}.items():
        flags = ("--config=set:num_steps=3", f"--config=fiddler:use_ema(beta={beta})")
        assert command(train.main, *SHORT, *flags, f"--run_dir={run}").status == 0

    def scores(run: str, *flags: str) -> str:
        return command(sample.main, run, "--score=def this", *flags).out

    own = scores(last)
    assert scores(first) == own  # averaging changes no weight
    assert scores(last, "--averaged") == own
    assert scores(first, "--averaged") != own
