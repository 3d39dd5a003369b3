"""Hydra's defaults lists and OmegaConf's interpolations mean what they mean to Hydra 1.3."""

from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, attributed_to, fiddle, parts
from fidgpt.graph.provenance import assignments_of
from fidgpt.interop import read_targets

FILES = {
    "base.yaml": "{width: 1, seed: 5, model: {color: red}}",
    "model/small.yaml": "{defaults: [block: plain, shared], width: 10, depth: 2, block: {size: 4}}",
    "model/shared.yaml": "{depth: 7, shared: true}",
    "model/like.yaml": "{defaults: [shared], width: 3}",
    "model/block/plain.yaml": "{kind: plain, size: 1}",
    "model/block/other.yaml": "{kind: other}",
    "optimizer/adam.yaml": "{defaults: [schedule: cosine, _self_], lr: 0.1}",
    "optimizer/sgd.yaml": "lr: 0.5",
    "optimizer/schedule/cosine.yaml": "warmup: 3",
    "extra/flags.yaml": "flag: true",
    "experiment/fast.yaml": """# @package _global_
        {defaults: [override /model/block: other, override /optimizer@train.opt: sgd], seed: 99}
        """,
    "server/a.yaml": """{defaults: [/model: small, /optimizer@here: sgd,
        /optimizer@_global_.g: sgd, /model/block@_here_: other], port: 1}""",
    "server/b.yaml": "# @package x.y\nport: 1",
}
SMALL = {"block": {"kind": "plain", "size": 4}, "depth": 2, "shared": True, "width": 10}


@pytest.fixture
def composed(tmp_path: Path) -> Any:
    """`composed(text)`: what a file of this text beside FILES holds."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)

    def composed(text: str, **select: str | None) -> Any:
        (tmp_path / "config.yaml").write_text(text)
        return read_targets(tmp_path / "config.yaml", select=select)

    return composed


# The results were compared with those of hydra-core 1.3.8.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """{defaults: [base, model: small, optimizer@train.opt: adam, optional no: one,
                optimizer: null, /extra/flags, _self_, experiment: fast],
                hydra: {run: {dir: x}}, width: 3, model: {depth: 9}}""",
            {
                "model": SMALL
                | {"block": {"kind": "other", "size": 4}, "depth": 9, "color": "red"},
                **{"extra": {"flag": True}, "seed": 99, "train": {"opt": {"lr": 0.5}}, "width": 3},
            },
        ),
        (
            "{defaults: [base, optimizer@train.opt: adam, _self_], width: 3}",
            {
                **{"width": 3, "seed": 5, "model": {"color": "red"}},
                "train": {"opt": {"lr": 0.1, "schedule": {"warmup": 3}}},
            },
        ),
        ("{defaults: [model@a.b: small], z: 1}", {"a": {"b": SMALL}, "z": 1}),
        (
            """{defaults: [model: [small, shared], base@q, override model/block: other], z: 1,
                model: {block: {size: 12}}}""",
            {
                "model": SMALL | {"block": {"kind": "other", "size": 12}, "depth": 7},
                **{"q": {"model": {"color": "red"}, "seed": 5, "width": 1}, "z": 1},
            },
        ),
        (
            "{defaults: [server: a], z: '${g.lr}'}",
            {
                "server": {"model": SMALL, "here": {"lr": 0.5}, "kind": "other", "port": 1},
                **{"g": {"lr": 0.5}, "z": 0.5},
            },
        ),
        (
            "{defaults: [server/b, model@_global_: shared]}",
            {"x": {"y": {"port": 1}}, "depth": 7, "shared": True},
        ),
    ],
)
def test_files_are_merged_by_their_defaults_lists(text: str, expected: Any, composed: Any) -> None:
    assert composed(text) == expected


def test_files_are_selected_as_on_the_command_line_of_hydra(composed: Any) -> None:
    text = "{defaults: [model: small, optional optimizer: null, optional experiment: null]}"
    assert composed(text, model="shared")["model"] == {"depth": 7, "shared": True}
    found = composed(text, model=None, optimizer="sgd")
    assert found == {"optimizer": {"lr": 0.5}}
    overridden = "{defaults: [model: small, override model/block: other]}"
    assert composed(overridden)["model"]["block"]["kind"] == "other"
    assert composed(overridden, **{"model/block": "plain"}) == {"model": SMALL}
    assert composed(text, model="like")["model"] == {"depth": 7, "shared": True, "width": 3}
    experiment = "{defaults: [model: small, override model: like]}"
    assert composed(experiment)["model"]["width"] == 3
    with pytest.raises(ConfigError, match=r"no defaults list has the group 'modl'. Did you mean m"):
        composed(text, modl="shared")
    with pytest.raises(ConfigError, match="no defaults list to select model in"):
        composed("{a: 1}", model="small")


def test_calls_of_several_files_become_one_graph(composed: Any, tmp_path: Path) -> None:
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "long.yaml").write_text(
        "{_target_: fidgpt.optim.WarmupCosine, num_steps: '${steps}', warmup_steps: '???'}"
    )
    found = composed("{defaults: [schedule: long], steps: 20, schedule: {warmup_steps: 2}}")
    schedule: Any = fdl.build(found["schedule"])
    assert (schedule.num_steps, found["steps"]) == (20, 20)
    with pytest.raises(ConfigError, match=r"schedule.warmup_steps: \?\?\? marks a missing value"):
        composed("{defaults: [schedule: long], steps: 20}")


def test_each_value_knows_the_file_and_the_line_in_which_it_is_written(
    composed: Any, tmp_path: Path
) -> None:
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "long.yaml").write_text(
        "_target_: fidgpt.optim.Phases\nshape:\n  _target_: fidgpt.optim.PolynomialDecay\n"
        "  power: ${power}\nnum_steps: 20\nwarmup: 3\ncycles:\n- 5\n- 15\n"
    )
    text = "defaults: [schedule: long]\npower: 3\nschedule:\n  warmup: 4\n"
    with attributed_to("March"):
        schedule = composed(text)["schedule"]
    wheres = {
        f"{part.path}.{key}".strip("."): assignments_of(part.value, key)[0].set_by
        for part in parts(schedule)
        for key in fiddle.raw_arguments(part.value)
    }
    long, own = tmp_path / "schedule" / "long.yaml", tmp_path / "config.yaml"
    assert wheres == {
        "shape": f"March ({long}:2)",
        "shape.power": f"March ({long}:4)",
        "num_steps": f"March ({long}:5)",
        "warmup": f"March ({own}:4)",
        "cycles": f"March ({long}:7)",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{defaults: [model: huge]}", r"config.yaml: defaults select .*huge.yaml, which does not"),
        ("{defaults: [model: '???']}", r"defaults have model: '\?\?\?'; select a file"),
        ("{defaults: [model: '${a}']}", "defaults have model: .*; select a file"),
        ("{defaults: [5]}", "defaults have 5; use NAME or GROUP: NAME"),
        ("{defaults: [forced model: small]}", "'forced' is unknown"),
        ("{defaults: 5}", "defaults must be a list, not 5"),
        ("{defaults: [config]}", "the defaults lists do not end after"),
    ],
)
def test_wrong_defaults_are_named(text: str, message: str, composed: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        composed(text)


# The results were compared with those of OmegaConf 2.4.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${oc.env:FIDGPT_WORD}", "hello"),
        ("path ${oc.env:FIDGPT_WORD}/x", "path hello/x"),
        ("${oc.env:FIDGPT_NONE,7}", "7"),
        ("${oc.env:FIDGPT_NONE,${a}}", "3"),
        ("${oc.env:FIDGPT_NONE,null}", None),
        ("${oc.env:FIDGPT_NONE,'a b'}", "a b"),
        ("${oc.decode:'[1, 2]'}", [1, 2]),
        ("${oc.decode:${oc.env:FIDGPT_NUMBER}}", 12),
        ("${oc.select:nope}", None),
        ("${oc.select:nope,5}", 5),
        ("${oc.select:b.c,5}", 3),
        ("${${which}.c}", 3),
        (r"\${a}", "${a}"),
    ],
)
def test_interpolations_are_those_of_omegaconf(
    text: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIDGPT_WORD", "hello")
    monkeypatch.setenv("FIDGPT_NUMBER", "12")
    root = read_targets(f"a: 3\nb: {{c: '${{a}}'}}\nwhich: b\nx: \"{text}\"".replace("\\", "\\\\"))
    assert root["x"] == expected


def test_a_missing_variable_and_other_resolvers_are_named() -> None:
    with pytest.raises(ConfigError, match="x: .* no variable 'FIDGPT_NONE'; set it"):
        read_targets("x: ${oc.env:FIDGPT_NONE}")
    with pytest.raises(ConfigError, match="resolver 'eval', which would run code"):
        read_targets("x: ${eval:'1 + 1'}")
