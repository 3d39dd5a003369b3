"""`--print` in its forms, `--why` and `--diff`: they show, and train nothing."""

import functools
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt import configs
from fidgpt.cli import train
from fidgpt.graph import dump, outline
from fidgpt.graph.codegen import python
from fidgpt.graph.outlines import flat, set_lines

DEBUG = "--config=config:debug"
Command = Callable[..., Any]


class TestPrint:
    """The forms of a graph."""

    def test_forms(self, command: Command) -> None:
        forms = {"text": outline, "flat": flat, "python": python, "defaults": set_lines}
        forms |= {form: functools.partial(dump, form=form) for form in ("json", "yaml")}
        for form, text in forms.items():
            assert command(train.main, DEBUG, f"--print={form}") == (0, text(configs.debug()), "")

    def test_base_is_where_the_directives_begin(self, command: Command) -> None:
        out = command(train.main, DEBUG, "--config=set:seed=3", "--print=base").out
        assert out.splitlines() == ["config:debug, but", "~ seed: 0 -> 3, inherited by 1 parameter"]
        out = command(train.main, "--config=set:seed=3", "--print=base").out
        assert out.splitlines()[0] == "config:base, but"

    def test_base_of_a_run_is_the_nearest_config(
        self, command: Command, run_directory: Path
    ) -> None:
        out = command(train.main, f"--resume={run_directory}", "--print=base").out
        assert out.splitlines()[0] == "config:debug, but"
        assert "~ seed: 0 -> 7, inherited by 1 parameter" in out.splitlines()

    def test_on_a_terminal_defaults_are_dim(
        self, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert "\x1b[2m      bias: False\x1b[0m\n" not in outline(configs.debug())
        out = command(train.main, DEBUG, "--print").out
        assert out == outline(configs.debug(), defaults=True, color=True)
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in command(train.main, DEBUG, "--print").out


class TestWhy:
    """The chain of a value, with the directives that made it."""

    def test_the_directives_are_named_with_their_numbers(self, command: Command) -> None:
        status, out, err = command(
            train.main,
            DEBUG,
            "--config=set:model.hidden_dim=64",
            "--config=set:model.hidden_dim=48",
            "--why=model.blocks[0].mlp.hidden_dim",
        )
        assert status == 0
        assert err.startswith("warning: set:model.hidden_dim=48 (directive 3) overrules ")
        lines = out.splitlines()
        assert lines[0] == "model.blocks[0].mlp.hidden_dim = 48"
        assert lines[4] == "    48  set by directive 3: set:model.hidden_dim=48"
        assert lines[5] == "    64  previously set by directive 2: set:model.hidden_dim=64"
        assert lines[6].startswith("    32  previously set by directive 1: config:debug (")
        assert "configs/small.py:" in lines[6]

    def test_a_fiddler_is_named_with_its_line(self, command: Command) -> None:
        flags = [DEBUG, "--config=fiddler:smoke_test(num_steps=3)", "--why=num_steps"]
        out = command(train.main, *flags).out
        line = "  3  set by directive 2: fiddler:smoke_test(num_steps=3) ("
        assert out.splitlines()[1].startswith(line)
        assert "fiddlers/runs.py:" in out.splitlines()[1]

    def test_a_selector_asks_for_each_of_its_places(self, command: Command) -> None:
        out = command(train.main, DEBUG, "--why=**.dropout").out
        heads = [text.split(" = ")[0] for text in out.split("\n\n")]
        assert sorted(heads) == [
            "model.blocks[0].attention.dropout",
            "model.blocks[0].dropout",
            "model.dropout",
        ]
        flags = ("--why=@LerningRate", "--why=seed", "--why=modl", "--print")
        status, out, err = command(train.main, DEBUG, *flags)
        assert (status, out) == (2, "")
        assert "error: --why=@LerningRate: @LerningRate selects nothing: no param" in err
        assert "--why=modl: Trainer has no parameter 'modl'. Did you mean model?" in err

    @pytest.mark.parametrize("how", ["--resume={}", "--config=config_file:{}/config.json"])
    def test_of_a_run_that_was_saved(self, command: Command, run_directory: Path, how: str) -> None:
        out = command(train.main, how.format(run_directory), "--why=seed").out
        lines = out.splitlines()
        assert lines[0] == "seed = 7"
        assert lines[1] == f"  7  set by {run_directory}: directive 4: set:seed=7"
        assert lines[2].startswith(f"  0  previously set by {run_directory}: directive 1: ")

    def test_what_comes_after_the_file_lies_on_top(
        self, command: Command, run_directory: Path
    ) -> None:
        file = f"--config=config_file:{run_directory}/config.json"
        lines = command(train.main, file, "--config=set:seed=8", "--why=seed").out.splitlines()
        assert lines[1] == "  8  set by directive 2: set:seed=8"
        assert lines[2] == f"  7  previously set by {run_directory}: directive 4: set:seed=7"

    def test_a_run_without_history_answers_from_its_content(
        self, command: Command, run_directory: Path
    ) -> None:
        (run_directory / "provenance.json").unlink()
        status, out, err = command(train.main, f"--resume={run_directory}", "--why=seed")
        assert (status, err) == (0, "")
        assert out.splitlines()[1] == f"  7  set by {run_directory}/config.json"

    @pytest.mark.parametrize("damage", [Path.mkdir, lambda path: path.write_text("{")])
    def test_a_damaged_history_is_ignored_with_a_warning(
        self, command: Command, run_directory: Path, damage: Callable[[Path], Any]
    ) -> None:
        file = run_directory / "provenance.json"
        file.unlink()
        damage(file)
        status, out, err = command(train.main, f"--resume={run_directory}", "--why=seed")
        assert (status, out.splitlines()[0]) == (0, "seed = 7")
        assert err.startswith(f"{file} is ignored: ")

    def test_history_is_no_part_of_the_content(self, run_directory: Path) -> None:
        assert "directive" not in (run_directory / "config.json").read_text()
        recorded = json.loads((run_directory / "provenance.json").read_text())
        assert recorded["seed"][-1] == {"value": "7", "by": "directive 4: set:seed=7"}


class TestDiff:
    """What differs from another graph."""

    @pytest.mark.parametrize("other", ["config:debug", "debug", "debug()"])
    def test_from_a_config(self, command: Command, other: str) -> None:
        flags = [DEBUG, "--config=set:seed=3", f"--diff={other}"]
        assert command(train.main, *flags) == (0, "~ seed: 0 -> 3, inherited by 1 parameter\n", "")

    def test_from_a_run_and_from_its_file(self, command: Command, run_directory: Path) -> None:
        flags = [DEBUG, "--config=set:num_steps=2", "--config=set:samples=None"]
        for other in (run_directory, run_directory / "config.json"):
            out = command(train.main, *flags, f"--diff={other}").out
            assert out == "~ seed: 7 -> 0, inherited by 1 parameter\n"

    def test_as_directives(self, command: Command) -> None:
        flags = [DEBUG, "--config=set:seed=3", "--config=set:samples.prompts=['a b']"]
        out = command(train.main, *flags, "--diff=debug", "--diff_form=directives").out
        assert [shlex.split(line) for line in sorted(out.splitlines())] == [
            ["--config=set:samples.prompts=['a b']"],
            ["--config=set:seed=3"],
        ]

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ("debgu", "Did you mean debug?"),
            ("config:debgu", "there is no config 'debgu'. Did you mean debug?"),
            ("nowhere/at/all", "there is no config, file or run directory of that name."),
            ("", "--diff= names nothing: give it a value"),
            ("{}/empty.yaml", "empty.yaml: it is empty."),
        ],
    )
    def test_mistakes(self, command: Command, other: str, message: str, tmp_path: Path) -> None:
        other = other.format(tmp_path)
        (tmp_path / "empty.yaml").touch()
        status, out, err = command(train.main, DEBUG, f"--diff={other}")
        assert (status, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) <= 4


def test_nothing_is_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--print=flat", "--why=seed", "--diff=base", "--repro"]
    assert command(train.main, DEBUG, *flags).status == 0
    assert list(tmp_path.iterdir()) == []


def test_a_broken_constraint_is_a_warning_to_who_looks(command: Command) -> None:
    flags = ["--config=config:debug", "--config=set:model.hidden_dim=30"]
    status, out, err = command(train.main, *flags, "--why=model.hidden_dim")
    assert status in (0, None)
    assert "model.hidden_dim = 30" in out
    assert "warning: this would not run: model.blocks[0].attention (Attention): hidden" in err


def test_a_config_of_a_module_is_another_graph_too(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from fidgpt.configs import debug\ndef mine(seed: int = 5):\n    cfg = debug()\n"
    (tmp_path / "fidlab_of_show.py").write_text(f"{code}    cfg.seed = seed\n    return cfg\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for other in ("fidlab_of_show.mine", "config:fidlab_of_show.mine", "fidlab_of_show.mine(5)"):
        out = command(train.main, DEBUG, f"--diff={other}").out
        assert out == "~ seed: 5 -> 0, inherited by 1 parameter\n"
    err = command(train.main, DEBUG, "--diff=fidlab_of_show.mime").err
    assert "there is no config, file or run directory of that name" in err


def test_a_patch_makes_the_difference(command: Command, tmp_path: Path) -> None:
    changes = ["--config=set:seed=3", "--config=fiddler:use_gelu"]
    debug = "--config=config:debug"
    out = command(train.main, debug, *changes, "--diff=debug", "--diff_form=patch").out
    (tmp_path / "gelu.patch").write_text(out)
    patched = command(train.main, debug, f"--config=patch:{tmp_path / 'gelu.patch'}", "--print")
    assert patched.out == command(train.main, debug, *changes, "--print").out
