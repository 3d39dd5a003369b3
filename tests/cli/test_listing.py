"""What --list and --help print."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt import configs, fiddlers
from fidgpt.cli import sample, sweep, train
from fidgpt.cli.listing import print_parameters, print_table

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("index_for")


def rows(text: str) -> list[list[str]]:
    """The cells of each row of a plain table."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in text.splitlines()
        if line.startswith("  ")
    ]


class TestList:
    """`--list` names what has a name, and runs nothing."""

    def test_configs(self, command: Command) -> None:
        status, out, err = command(train.main, "--list=configs")
        assert (status, err) == (0, "")
        assert out.startswith("Configs\n")
        listed = [*configs.__all__, "from_hf(directory=...)"]
        assert [row[0] for row in rows(out)] == [f"config:{name}" for name in listed]
        assert "3.5 million parameters" in out
        assert command(sweep.main, "--list=configs").out == out

    def test_fiddlers_with_their_arguments(self, command: Command) -> None:
        listed = dict(rows(command(train.main, "--list=fiddlers").out))
        assert len(listed) == len(fiddlers.__all__)
        assert listed["fiddler:use_gqa(num_kv_heads=2)"].startswith("Use grouped-query attention")

    def test_tags_with_what_sets_and_inherits_them(self, command: Command) -> None:
        out = command(train.main, "--list=tags", "--config=config:gpt2_124m").out
        assert out.startswith("Tags, as config:gpt2_124m sets them\n")
        shown = {row[0]: row[1:] for row in rows(out)}
        path, inherited, doc = shown["tag:HiddenDim"]
        assert path == "model.hidden_dim=768"
        assert re.fullmatch(r"inherited by \d+", inherited)
        assert doc == "Width of the residual stream, in elements."

    def test_parts(self, command: Command) -> None:
        out = command(train.main, "--list=parts:schedule").out
        assert out.startswith("Parts that fit schedule (Schedule), which is WarmupCosine\n")
        names = [row[0] for row in rows(out)]
        assert names == ["Phases", "WarmupCosine", "WarmupStableDecay", "optim.Constant"]
        assert "none of fidgpt's own" in command(train.main, "--list=parts:samples.prompts").out
        names = {row[0] for row in rows(command(train.main, "--list=parts").out)}
        assert {"Attention", "adamw", "TokenStream", "DataParallel", "RouterZLoss"} <= names
        assert not {"DataError", "Outcome", "Tracker"} & names

    def test_knobs_below_a_path(self, command: Command) -> None:
        out = command(train.main, "--list=knobs:model.norm", "--config=set:seed=1").out
        assert rows(out) == [
            ["model.norm", "Module", "RMSNorm", "normalises the stream after the last block."],
            ["model.norm.hidden_dim", "int", "256 <- model.hidden_dim", "width of the input."],
            ["model.norm.eps", "float", "1e-05", "added to the mean of squares."],
        ]
        assert "before the directives that follow" in out
        assert len(command(train.main, "--list=knobs").out.splitlines()) > 80

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--list=confgs"], "error: --list=confgs: Did you mean configs?"),
            (["--list=tags:x"], "error: --list=tags:x: "),
            (["--list=parts:model.nrm"], "error: config:base has nothing at 'model.nrm'. Did you"),
            (["--list=knobs:nope"], "error: config:base has nothing at 'nope'."),
            (["--list=knobs", "--config=config:bas"], "error: directive 1 is wrong:\n"),
            (["--list=knobs", "--config=config_file:x"], "error: directive 1 is wrong:\n"),
        ],
    )
    def test_mistakes(self, command: Command, flags: list[str], message: str) -> None:
        status, out, err = command(train.main, *flags)
        assert (status, out) == (2, "")
        assert err.startswith(message)


class TestHelp:
    """`--help` shows the flags, and the parameters of the chosen config."""

    def test_of_every_command(self, command: Command) -> None:
        for main in (train.main, sweep.main, sample.main):
            status, out, err = command(main, "--help")
            assert (status, err) == (0, "")
            assert "--debug" in out and "model.hidden_dim" not in out

    @pytest.mark.parametrize("flags", [("--help", "{}"), ("{}", "--help"), ("{}", "-?")])
    def test_of_a_config(self, command: Command, flags: tuple[str, ...]) -> None:
        words = [flag.format("--config=config:gpt2_124m") for flag in flags]
        status, out, _ = command(train.main, *words, "--config=set:seed=1")
        assert status == 0
        assert "before the directives that follow" in out
        shown = {
            row[0]: row[1:] for row in rows(out.partition("Parameters of config:gpt2_124m")[2])
        }
        assert shown["model.num_layers"] == ["int", "12", "depth."]
        assert "optimizer.lr" in shown
        assert "model.blocks[0].attention.hidden_dim" not in shown, "inherited"
        assert "model.norm" not in shown and "evaluators" not in shown, "components"
        assert out.index("optimizer.weight_decay") < out.index("optimizer.eps"), "what is set first"

    def test_of_an_unknown_config(self, command: Command) -> None:
        status, out, err = command(train.main, "--help", "--config=config:bas")
        assert status == 2
        assert "--debug" in out
        assert "Did you mean base?" in err

    def test_layers_like_the_first_are_shown_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        parameters = [
            {"path": f"blocks[{i}].width", "type": "int", "value": "7" if i == 2 else "5"}
            for i in range(12)
        ]
        print_parameters([], {"doc": "Deep.", "parameters": parameters})
        shown = [row[0] for row in rows(capsys.readouterr().out)]
        shown = [one for one in shown if one[:6] == "blocks"]
        assert shown == ["blocks[0].width", "blocks[2].width"]


LAB = """
import fiddle as fdl
from fidgpt.configs import debug

class Heat(fdl.Tag):
    'How hot it is, in kelvin.'

def narrow(width: int = 16) -> fdl.Config:
    'As narrow as can be.'
    cfg = debug()
    cfg.model.hidden_dim = width
    fdl.add_tag(cfg.model, 'dropout', Heat)
    return cfg
"""


class TestUnlistedConfigs:
    """Configs of modules, of files and with arguments."""

    def test_of_a_module(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pagelab.py").write_text(LAB)
        monkeypatch.syspath_prepend(str(tmp_path))
        narrow = "--config=config:pagelab.narrow"
        status, out, err = command(train.main, narrow, "--help")
        assert (status, err) == (0, "")
        assert "As narrow as can be." in out
        shown = {row[0]: row[1:] for row in rows(out.partition("Parameters of config:pagelab")[2])}
        assert shown["model.hidden_dim"][:2] == ["int", "16"]
        out = command(train.main, "--config=config:pagelab.narrow(48)", "--list=knobs:model").out
        assert ["model.hidden_dim", "int", "48", "width of the residual stream."] in rows(out)
        assert "RMSNorm" in command(train.main, narrow, "--list=parts:model.norm").out
        out = command(train.main, narrow, "--list=tags").out
        assert ["tag:pagelab.Heat", "model.dropout=0.0", "How hot it is, in kelvin."] in [
            [row[0], row[1], row[-1]] for row in rows(out) if len(row) > 2
        ]

    def test_of_a_file(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        text = command(train.main, "--config=config:debug", "--print=yaml").out
        listed = ("--config=config_file:my.yaml", "--list=knobs:num_steps")
        Path("my.yaml").write_text(text)
        out = command(train.main, *listed).out
        assert out.startswith("Settings of config_file:my.yaml\n")
        assert rows(out)[0][:3] == ["num_steps", "int", "10"]
        Path("my.yaml").write_text(text.replace("num_steps: 10", "num_steps: 11"))
        assert rows(command(train.main, *listed).out)[0][:3] == ["num_steps", "int", "11"]


def test_tables_are_drawn_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    print_table("Title", ["name", "none", "doc"], [["a[b]", "", "words " * 12]])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert "name" in lines[1] and "none" not in lines[1] and "a[b]" in lines[2]
    assert len(lines) > 4 and max(map(len, lines)) <= 40
