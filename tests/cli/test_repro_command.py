"""`--repro`: directives that make a graph again."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
from small_models import tiered

from fidgpt import configs, graph, tags
from fidgpt.cli import train
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.reproduction import command_for

from .conftest import Command

pytestmark = pytest.mark.slow

DEBUG = "--config=config:debug"
CATALOGUE = own_catalogue()


def repro(command: Command, *flags: str) -> list[str]:
    done = command(train.main, *flags, "--repro")
    assert done.status == 0
    program, *found = shlex.split(done.out)[1:]
    assert program == "train.py"
    return found


def test_the_command_makes_the_same_graph(command: Command, tmp_path: Path) -> None:
    flags = [DEBUG, "--config=set:seed=9", "--config=set:seed=3", "--config=fiddler:use_gelu"]
    found = repro(command, *flags)
    assert found == [DEBUG, *flags[2:]]
    again = command(train.main, *found, "--print=json").out
    assert again == command(train.main, *flags, "--print=json").out
    flags = [DEBUG, "--config=fiddler:use_gqa(num_kv_heads=1)", "--config=set:num_steps=2"]
    flags.append("--config=set:samples=None")
    assert repro(command, *flags) == flags
    run = tmp_path / "run"
    idle = [flags[1], "--allow_noop"]
    assert command(train.main, *flags, *idle, f"--run_dir={run}").status == 0
    found = repro(command, f"--config=config_file:{run}/config.json")
    assert found == flags


def test_what_directives_cannot_make_is_named(command: Command, tmp_path: Path) -> None:
    cfg: Any = fdl.Config(dict, seed=1)
    known = dataclasses.replace(own_catalogue(), configs={"mine": lambda: cfg})
    assert command_for(cfg, known, directives=["config:mine"]).endswith("=config:mine\n")
    cfg = configs.debug()
    fdl.add_tag(cfg.samples, "num_tokens", tags.NumSteps)
    file = tmp_path / "a b.json"
    file.write_text(graph.dump(cfg))
    flags = [f"--config=config_file:{file}", "--config=set:seed=3"]
    *_, before, last = command(train.main, *flags, "--repro").out.splitlines()
    assert before == "# No directive makes the rest:"
    assert "num_tokens" in last


def test_what_differs_from_a_file_is_set(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(graph.dump(configs.debug()))
    changed = [DEBUG, "--config=set:seed=3"]
    out = command(train.main, *changed, f"--diff={file}", "--diff_form=directives").out
    assert out == "--config=set:seed=3\n"


DIRECTIVES = [
    ["config:base", "fiddler:use_squared_relu", "set:num_steps=777", "tag:LearningRate=3e-4"],
    ["config:gemma3_270m", "fiddler:use_gelu", "fiddler:use_qk_norm", "set:checkpoints.every=9"],
    ["config:qwen3_8b", "set:**.eps=1e-4", "set:schedule.warmup_steps=11"],
]


@pytest.mark.parametrize("directives", tiered(DIRECTIVES, DIRECTIVES[:1]), ids=" ".join)
def test_a_graph_is_reproduced_without_its_history(directives: list[str]) -> None:
    """The nearest config is found, and what differs is set, from what the graph holds alone."""
    cfg = graph.load(graph.dump(compose(directives, CATALOGUE).config))
    found = shlex.split(command_for(cfg, CATALOGUE, directives=["config_file:it.json"]))
    made = [one.removeprefix("--config=") for one in found[2:]]
    assert made[0] == directives[0]
    assert graph.fingerprint(compose(made, CATALOGUE).config) == graph.fingerprint(cfg)
