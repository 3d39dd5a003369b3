"""Configs, patches and runs in storage that is no disk of this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from fidgpt.cli import train
from fidgpt.configs import debug
from fidgpt.graph import attributed_to, clone, diff, dump, dump_patch
from fidgpt.graph.provenance import dump_provenance

from .conftest import Command

DEBUG = "--config=config:debug"
ONE_CHANGE = "~ num_steps: 10 -> 20, inherited by 2 parameters\n"


@pytest.fixture
def longer() -> Any:
    cfg = debug()
    with attributed_to("a distant user"):
        cfg.num_steps = 20
    return cfg


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where files can be put: a URL that ends before the slash."""
    yield "memory://runs/first" if request.param == "memory" else f"file://{tmp_path}"
    MemoryFileSystem.store.clear()


def put(url: str, text: str) -> None:
    with fsspec.open(url, "w", encoding="utf-8") as file:
        file.write(text)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_runs_files_and_patches_in_storage(command: Command, store: str, longer: Any) -> None:
    put(f"{store}/config.json", dump(longer))
    put(f"{store}/provenance.json", dump_provenance(longer))
    put(f"{store}/other.yaml", dump(longer, form="yaml"))
    put(f"{store}/longer.patch", dump_patch(diff(debug(), clone(longer))))
    flags = (f"--config=config_file:{store}/config.json", "--diff=debug", "--why=num_steps")
    status, out, err = command(train.main, *flags)
    assert (status, err) == (0, "")
    assert out.startswith("num_steps = 20\n  20  set by") and "a distant user" in out
    assert out.endswith(ONE_CHANGE)
    for named in (store, f"{store}/", f"{store}/config.json", f"{store}/other.yaml"):
        done = command(train.main, DEBUG, f"--diff={named}")
        line = "~ num_steps: 20 -> 10, inherited by 2 parameters\n"
        assert done == (0, f"from {named} to this config:\n{line}", "")
    flags = (DEBUG, f"--config=patch:{store}/longer.patch", "--diff=debug")
    assert command(train.main, *flags) == (0, f"from debug to this config:\n{ONE_CHANGE}", "")


CHAINED = "it chains protocols by ::, and some of them run what files say."


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://none/config.json", "No such file or directory."),
        ("file:///none/config.json", "No such file or directory."),
        ("nowhere://runs/config.json", "Protocol not known: nowhere."),
        # A file of references is a template, which runs whatever it says.
        ("reference://a::memory://b", CHAINED),
    ],
)
def test_unreadable_storage(command: Command, url: str, reason: str) -> None:
    status, _, err = command(train.main, f"--config=config_file:{url}", "--print")
    assert (status, err.splitlines()[-1]) == (2, f"  {url} cannot be read: {reason}")
