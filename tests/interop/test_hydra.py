"""Hydra composes files by their defaults lists, and OmegaConf resolves what is in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError
from fidgpt.interop import read_targets

FILES = {
    "model/small.yaml": "{defaults: [block: plain, _self_], width: 10, block: {size: 4}}",
    "model/wide.yaml": "{defaults: [small, _self_], width: 20}",
    "model/block/plain.yaml": "{kind: plain, size: 1}",
    "model/block/other.yaml": "{kind: other}",
    "schedule/long.yaml": (
        "{_target_: fidgpt.optim.WarmupCosine, num_steps: '${steps}', warmup_steps: '???'}"
    ),
}


@pytest.fixture
def composed(tmp_path: Path) -> Callable[..., Any]:
    """`composed(text)`: what a file of this text beside FILES holds."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)

    def composed(text: str, **select: str | None) -> Any:
        (tmp_path / "config.yaml").write_text(text)
        return read_targets(tmp_path / "config.yaml", select=select)

    return composed


def test_files_are_selected_as_on_the_command_line_of_hydra(composed: Callable[..., Any]) -> None:
    text = "{defaults: [model: small, _self_], seed: 3, hydra: {run: {dir: x}}}"
    assert composed(text) == {
        "model": {"block": {"kind": "plain", "size": 4}, "width": 10},
        "seed": 3,
    }
    assert composed(text, model="wide")["model"]["width"] == 20
    assert composed(text, **{"model/block": "other"})["model"]["block"]["kind"] == "other"
    assert composed(text, model=None) == {"seed": 3}


def test_calls_of_several_files_become_one_graph(composed: Callable[..., Any]) -> None:
    root = composed("""{defaults: [schedule: long, _self_], steps: 20, also: '${schedule}',
        schedule: {warmup_steps: 2}}""")
    assert root["also"] is root["schedule"]
    assert root["schedule"].warmup_steps == 2
    schedule: Any = fdl.build(root["schedule"])
    assert schedule.num_steps == root["steps"] == 20
    with pytest.raises(ConfigError, match=r"schedule.warmup_steps: Missing mandatory value"):
        composed("{defaults: [schedule: long, _self_], steps: 20}")


@pytest.mark.parametrize(
    ("text", "select", "message"),
    [
        ("{defaults: [model: huge, _self_]}", {}, "config.yaml cannot be read: .*'model/huge'"),
        ("{defaults: [model: small, _self_]}", {"modl": "wide"}, "Could not override 'modl'"),
    ],
)
def test_what_hydra_cannot_compose_is_an_error(
    text: str, select: dict[str, str], message: str, composed: Callable[..., Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        composed(text, **select)


def test_interpolations_are_those_of_omegaconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDGPT_WORD", "hello")
    root = read_targets("""
        word: "${oc.env:FIDGPT_WORD}/${oc.select:nope,5}"
        list: "${oc.decode:'[1, 2]'}"
        which: word
        inner: "${${which}}"
        literal: \\${a}
    """)
    assert root["word"] == root["inner"] == "hello/5"
    assert (root["list"], root["literal"]) == ([1, 2], "${a}")
    with pytest.raises(ConfigError, match="x: .*'FIDGPT_NONE' not found"):
        read_targets("x: ${oc.env:FIDGPT_NONE}")
