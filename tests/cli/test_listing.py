"""What --list and --help print."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt import configs, fiddlers
from fidgpt.cli import listing as tables
from fidgpt.cli import sample, sweep, train
from fidgpt.cli.listing import print_knobs
from fidgpt.compose import index as chosen
from fidgpt.compose.index_build import build_chosen

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("kept_index")


def rows(text: str) -> list[list[str]]:
    """The cells of each row of a plain table."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in text.splitlines()
        if line.startswith("  ")
    ]


class TestList:
    """`--list` names what has a name, and runs nothing."""

    @pytest.mark.parametrize("main", [train.main, sweep.main], ids=["train", "sweep"])
    def test_configs_with_their_docs(self, command: Command, main: Any) -> None:
        status, out, err = command(main, "--list=configs")
        assert (status, err) == (0, "")
        assert out.startswith("Configs\n")
        listed = [*configs.__all__, "from_hf(directory=...)"]
        assert [row[0] for row in rows(out)] == [f"config:{name}" for name in listed]
        assert "3.5 million parameters" in out

    def test_fiddlers_with_their_arguments(self, command: Command) -> None:
        listed = dict(rows(command(train.main, "--list=fiddlers").out))
        assert len(listed) == len(fiddlers.__all__)
        assert listed["fiddler:use_gqa(num_kv_heads=2)"].startswith("Neighbouring query heads")
        assert "fiddler:use_text(path=..., text_field='text')" in listed

    def test_tags_with_who_says_and_who_hears(
        self, command: Command, kept_index: dict[str, Any]
    ) -> None:
        hears = kept_index["quantities"]["gpt2_124m"]["HiddenDim"]["hears"]
        out = command(train.main, "--list=tags", "--config=config:gpt2_124m").out
        assert out.startswith("Tags, as config:gpt2_124m says them\n")
        assert [
            "tag:HiddenDim",
            "model.hidden_dim=768",
            f"heard in {len(hears)} places",
            "Width of the residual stream, in elements.",
        ] in rows(out)

    def test_parts_that_fit_a_place(self, command: Command) -> None:
        out = command(train.main, "--list=parts:schedule").out
        assert out.startswith("Parts that fit schedule (Schedule), which is WarmupCosine\n")
        names = [row[0] for row in rows(out)]
        assert names == ["Phases", "WarmupCosine", "WarmupStableDecay", "optim.Constant"]
        assert "none of fidgpt's own" in command(train.main, "--list=parts:samples.prompts").out

    def test_parts_are_those_that_fit_somewhere(self, command: Command) -> None:
        names = {row[0] for row in rows(command(train.main, "--list=parts").out)}
        assert {"Attention", "adamw", "TokenStream", "DataParallel"} <= names
        assert not {"DataError", "Outcome", "Tracker"} & names

    def test_knobs_below_a_path(self, command: Command) -> None:
        out = command(train.main, "--list=knobs:model.norm", "--config=set:seed=1").out
        assert rows(out) == [
            ["model.norm", "Module", "RMSNorm", "normalises the stream after the last block."],
            [
                "model.norm.hidden_dim",
                "int",
                "256 <- model.hidden_dim",
                "width of the input.",
            ],
            ["model.norm.eps", "float", "1e-05", "added to the mean of squares."],
        ]
        assert "before the directives that follow" in out
        assert len(command(train.main, "--list=knobs").out.splitlines()) > 80

    def test_all_of_it(self, command: Command) -> None:
        status, out, err = command(train.main, "--list")
        assert (status, err) == (0, "")
        for title in ("Configs", "Fiddlers", "Tags, as config:base says them", "Parts"):
            assert f"{title}\n" in out

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--list=confgs"], "error: --list=confgs: Did you mean configs?"),
            (["--list=parts:model.nrm"], "error: config:base has nothing at 'model.nrm'. Did you"),
            (["--list=knobs:nope"], "error: config:base has nothing at 'nope'."),
            (["--list=knobs", "--config=config:bas"], "error: there is no config 'bas'. Did you"),
            (
                ["--list=knobs", "--config=config_file:x"],
                "error: directive 1 is wrong:\n  --config=conf",
            ),
            (
                ["--list=tags", "--config=config:lap.x"],
                "error: directive 1 is wrong:\n  --config=conf",
            ),
        ],
    )
    def test_mistakes(self, command: Command, flags: list[str], message: str) -> None:
        status, out, err = command(train.main, *flags)
        assert (status, out) == (2, "")
        assert err.startswith(message)


class TestHelp:
    """`--help` names the flags, and what the chosen config can be told."""

    def test_of_every_command_is_no_mistake(self, command: Command) -> None:
        for main in (train.main, sweep.main, sample.main):
            status, out, err = command(main, "--help")
            assert (status, err) == (0, "")
            assert "--debug" in out

    def test_without_a_config_is_short(self, command: Command) -> None:
        out = command(train.main, "--help").out
        assert "Configs: base, debug, " in out
        assert "model.hidden_dim" not in out

    @pytest.mark.parametrize("flags", [("--help", "{}"), ("{}", "--help"), ("{}", "-?")])
    def test_of_a_config(self, command: Command, flags: tuple[str, ...]) -> None:
        words = [flag.format("--config=config:gpt2_124m") for flag in flags]
        status, out, _ = command(train.main, *words)
        assert status == 0
        told = {row[0]: row[1:] for row in rows(out.partition("What config:")[2])}
        assert told["model.num_layers"] == ["int", "12", "depth."]
        assert "optimizer.lr" in told
        assert "model.blocks[0].attention.hidden_dim" not in told, "heard"
        assert "model.norm" not in told, "a part"
        assert "evaluators" not in told, "parts"

    def test_what_somebody_said_comes_first(self, command: Command) -> None:
        out = command(train.main, "--help", "--config=config:base").out
        assert out.index("optimizer.weight_decay") < out.index("optimizer.eps")

    def test_says_that_later_directives_are_not_in_it(self, command: Command) -> None:
        flags = ["--help", "--config=config:base", "--config=set:model.hidden_dim=512"]
        assert "before the directives that follow" in command(train.main, *flags).out

    def test_of_an_unknown_config(self, command: Command) -> None:
        status, _, err = command(train.main, "--help", "--config=config:bas")
        assert (status, err) == (2, "error: there is no config 'bas'. Did you mean base?\n")

    def test_layers_like_the_first_are_told_once(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        knobs = [
            {"path": f"blocks[{i}].width", "type": "int", "value": "7" if i == 2 else "5"}
            for i in range(12)
        ]
        index = {"knobs": {"base": knobs}, "configs": {"base": {"doc": "Deep."}}}
        monkeypatch.setattr("fidgpt.compose.index.whole", lambda: index)
        print_knobs([])
        told = [row[0] for row in rows(capsys.readouterr().out)]
        assert told[:2] == ["blocks[0].width", "blocks[2].width"]
        assert not [one for one in told[2:] if one.startswith("blocks")]


class TestConfigsOnNoList:
    """Configs of modules, of files and with arguments of their own have knobs as well."""

    def test_of_a_module(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pagelab.py").write_text(FIDLAB)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(chosen, "_built", build_chosen)  # without a process for each
        narrow = "--config=config:pagelab.narrow"
        status, out, err = command(train.main, narrow, "--help")
        assert (status, err) == (0, "")
        assert "As narrow as can be." in out and "What config:pagelab.narrow can be told" in out
        told = {row[0]: row[1:] for row in rows(out.partition("What config:")[2])}
        assert told["model.hidden_dim"][:2] == ["int", "16"]
        out = command(train.main, "--config=config:pagelab.narrow(48)", "--list=knobs:model").out
        assert ["model.hidden_dim", "int", "48", "width of the residual stream."] in rows(out)
        out = command(train.main, narrow, "--list=parts:model.norm").out
        assert "RMSNorm" in out
        out = command(train.main, narrow, "--list=tags").out
        assert ["tag:pagelab.Heat", "model.dropout=0.0", "How hot it is, in kelvin."] in [
            [row[0], row[1], row[-1]] for row in rows(out) if len(row) > 2
        ]

    def test_of_a_file(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        text = command(train.main, "--config=config:debug", "--print=yaml").out
        Path("my.yaml").write_text(text)
        out = command(train.main, "--config=config_file:my.yaml", "--list=knobs:num_steps").out
        assert out.startswith("Knobs of config_file:my.yaml\n")
        assert rows(out)[0][:3] == ["num_steps", "int", "10"]
        assert chosen._kept("config_file:my.yaml", [])[1], "kept for the next time"
        Path("my.yaml").write_text(text + "\n")
        assert not chosen._kept("config_file:my.yaml", [])[1], "no longer true"


FIDLAB = """
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


def test_tables_are_drawn_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    tables.print_table("Title", ["name", "none", "doc"], [["a[b]", "", "words " * 12]])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert "name" in lines[1] and "none" not in lines[1] and "a[b]" in lines[2]
    assert len(lines) > 4 and max(map(len, lines)) <= 40
