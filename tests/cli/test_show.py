"""`--print` in its forms, `--why` and `--diff`: they show, and train nothing."""

import functools
import json
import shlex
import sys
from pathlib import Path

import pytest

from fidgpt import configs
from fidgpt.cli import train
from fidgpt.cli.colors import GRAPHS, colored
from fidgpt.graph import dump, outline
from fidgpt.graph.codegen import python
from fidgpt.graph.outlines import flat, set_lines

from .conftest import Command

pytestmark = pytest.mark.slow

DEBUG = "--config=config:debug"
SEED = "--config=set:seed=3"
ONE_CHANGE = "~ seed: 0 -> 3, inherited by 1 parameter\n"


def test_forms(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = configs.debug()
    forms = {"text": outline, "flat": flat, "python": python, "defaults": set_lines}
    forms |= {form: functools.partial(dump, form=form) for form in ("json", "yaml")}
    for form, text in forms.items():
        assert command(train.main, DEBUG, f"--print={form}") == (0, text(cfg), "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = colored(outline(cfg, defaults=True, color=True), GRAPHS)
    assert command(train.main, DEBUG, "--print").out == written
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in command(train.main, DEBUG, "--print").out


def test_what_differs_from_the_base(command: Command, run_directory: Path) -> None:
    out = command(train.main, DEBUG, SEED, "--print=base").out
    assert out == f"config:debug, but\n{ONE_CHANGE}"
    assert command(train.main, SEED, "--print=base").out.startswith("config:base, but\n")
    lines = command(train.main, f"--resume={run_directory}", "--print=base").out.splitlines()
    assert lines[0] == "config:debug, but"  # the nearest
    assert "~ seed: 0 -> 7, inherited by 1 parameter" in lines


class TestWhy:
    """The chain of a value, with the directives that made it."""

    @pytest.mark.slow
    def test_directives_and_fiddlers_are_named(self, command: Command) -> None:
        widths = [f"--config=set:model.hidden_dim={width}" for width in (64, 48)]
        flags = [DEBUG, *widths, "--why=model.blocks[0].mlp.hidden_dim"]
        status, out, err = command(train.main, *flags)
        assert status == 0
        assert err.startswith("warning: set:model.hidden_dim=48 (directive 3) overrides ")
        lines = out.splitlines()
        assert lines[0] == "model.blocks[0].mlp.hidden_dim = 48"
        assert lines[4] == "    48  set by directive 3: set:model.hidden_dim=48"
        assert lines[5] == "    64  previously set by directive 2: set:model.hidden_dim=64"
        assert lines[6].startswith("    32  previously set by directive 1: config:debug (")
        assert "configs/small.py:" in lines[6]
        flags = [DEBUG, "--config=fiddler:smoke_test(num_steps=3)", "--why=num_steps"]
        line = command(train.main, *flags).out.splitlines()[1]
        assert line.startswith("  3  set by directive 2: fiddler:smoke_test(num_steps=3) (")
        assert "fiddlers/runs.py:" in line

    @pytest.mark.slow
    def test_a_selector_asks_for_each_match(self, command: Command) -> None:
        out = command(train.main, DEBUG, "--why=**.dropout").out
        heads = [text.split(" = ")[0] for text in out.split("\n\n")]
        names = ["model.blocks[0].attention.dropout", "model.blocks[0].dropout", "model.dropout"]
        assert sorted(heads) == names
        flags = ("--why=@LerningRate", "--why=seed", "--print")
        status, out, err = command(train.main, DEBUG, *flags)
        assert (status, out) == (2, "")
        assert "error: --why=@LerningRate: @LerningRate selects nothing: no param" in err

    def test_of_a_run(self, command: Command, run_directory: Path) -> None:
        file, resume = run_directory / "provenance.json", f"--resume={run_directory}"
        before = f"{run_directory}: directive 4: set:seed=7"
        saved = f"--config=config_file:{run_directory}/config.json"
        for how in (resume, saved):
            lines = command(train.main, how, "--why=seed").out.splitlines()
            assert lines[:2] == ["seed = 7", f"  7  set by {before}"]
            assert lines[2].startswith(f"  0  previously set by {run_directory}: directive 1: ")
        lines = command(train.main, saved, "--config=set:seed=8", "--why=seed").out.splitlines()
        assert lines[1] == "  8  set by directive 2: set:seed=8"
        assert lines[2] == f"  7  previously set by {before}"
        assert "directive" not in (run_directory / "config.json").read_text()
        recorded = json.loads(file.read_text())
        by = {"text": "set:seed=7", "kind": "directive", "number": 4}
        assert recorded["seed"][-1] == {"value": "7", "by": by}
        file.unlink()
        done = command(train.main, resume, "--why=seed")
        assert (done.status, done.err) == (0, "")
        assert done.out.splitlines()[1] == f"  7  set by {run_directory}/config.json"
        file.write_text("{")
        status, out, err = command(train.main, resume, "--why=seed")
        assert (status, out.splitlines()[0]) == (0, "seed = 7")
        assert err.startswith(f"{file} is ignored: ")


class TestDiff:
    """What differs from another graph."""

    def test_from_configs_and_runs(
        self,
        command: Command,
        run_directory: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for other in ("config:debug", "debug", "debug()"):
            shown = f"from {other} to this config:\n{ONE_CHANGE}"
            assert command(train.main, DEBUG, SEED, f"--diff={other}") == (0, shown, "")
            assert command(train.main, DEBUG, f"--diff={other}") == (0, "no difference\n", "")
        flags = [DEBUG, "--config=set:num_steps=2", "--config=set:samples=None"]
        for other in (run_directory, run_directory / "config.json"):
            out = command(train.main, *flags, f"--diff={other}").out
            line = "~ seed: 7 -> 0, inherited by 1 parameter\n"
            assert out == f"from {other} to this config:\n{line}"
        code = "from fidgpt.configs import debug\ndef mine(seed: int = 5):\n    cfg = debug()\n"
        (tmp_path / "showlab.py").write_text(f"{code}    cfg.seed = seed\n    return cfg\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        for other in ("showlab.mine", "config:showlab.mine", "showlab.mine(5)"):
            out = command(train.main, DEBUG, f"--diff={other}").out
            assert out.endswith("\n~ seed: 5 -> 0, inherited by 1 parameter\n")

    @pytest.mark.slow
    def test_as_directives_and_as_a_patch(self, command: Command, tmp_path: Path) -> None:
        flags = [DEBUG, SEED, "--config=set:samples.prompts=['a b']"]
        out = command(train.main, *flags, "--diff=debug", "--diff_form=directives").out
        assert sorted(map(shlex.split, out.splitlines())) == sorted([one] for one in flags[1:])
        changes = [SEED, "--config=fiddler:use_gelu"]
        out = command(train.main, DEBUG, *changes, "--diff=debug", "--diff_form=patch").out
        (tmp_path / "gelu.patch").write_text(out)
        patched = command(train.main, DEBUG, f"--config=patch:{tmp_path / 'gelu.patch'}", "--print")
        assert patched.out == command(train.main, DEBUG, *changes, "--print").out


def test_what_would_not_run_is_shown_with_a_warning(command: Command) -> None:
    flags = [DEBUG, "--config=set:model.hidden_dim=30"]
    status, out, err = command(train.main, *flags, "--why=model.hidden_dim")
    assert status == 0 and "model.hidden_dim = 30" in out
    assert "warning: this would not run: model.blocks[0].attention (Attention): hidden" in err
