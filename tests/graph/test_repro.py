"""Directives that make a graph again, checked by making it."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import fiddle as fdl
import pytest
from torch import nn

from fidgpt import configs, data, fiddlers, model, optim, tags, train
from fidgpt.graph import ConfigError, clone, fingerprint
from fidgpt.graph.edits import change_by, delete, set_text, tie, untie, use
from fidgpt.graph.reproduce import Repro, nearest, repro
from fidgpt.graph.spelling import spell
from fidgpt.late import exports

from .parts import Color, Part, Width

PARTS = {n: one for room in (model, optim, train, data) for n, one in exports(room).items()}
PARTS["LayerNorm"] = nn.LayerNorm
BASES = {f"config:{name}": getattr(configs, name)() for name in ("base", "debug", "gpt2_124m")}


def compose(directives: Sequence[str]) -> Any:
    root: Any = None
    for directive in directives:
        kind, _, rest = directive.partition(":")
        match = re.fullmatch(r"(.*?)([*+-]?)=(.*)", rest)
        left, sign, right = match.groups() if match else (rest, "", "")
        match kind:
            case "set" if sign:
                change_by(root, left, sign, right)
            case "config":
                root = clone(BASES[directive])
            case "fiddler":
                getattr(fiddlers, left)(root)
            case "set":
                set_text(root, left, right, parts=PARTS)
            case "tag":
                set_text(root, getattr(tags, left), right)
            case "use":
                use(root, left, right, parts=PARTS)
            case "tie":
                tie(root, left, right)
            case _:
                {"del": delete, "untie": untie}[kind](root, left)
    return root


def found(*directives: str) -> Repro:
    """What is found for the graph of some directives, of which only the first is known."""
    return repro(compose(directives), directives[:1], compose=compose)


@pytest.mark.parametrize(
    "more",
    [
        ["set:model.hidden_dim=512", "set:optimizer.betas=(0.8, 0.9)"],
        ["set:model.blocks[0].mlp.hidden_dim=128"],
        ["del:checkpoints.every"],
        ["del:evaluators['validation']"],
        ["set:samples.prompts=['x, y', 'it=1']"],
        ["untie:model.unembedding.weight"],
        ["use:model.blocks[0].mlp=GELU"],
        ["use:data.corpus.source=TextFiles(path='a b, c.txt')"],
        ["set:schedule.warmup_steps={num_steps} // 7"],
        ["set:model.norm.eps={seed} + 1", "set:optimizer.eps={seed} + 1"],
        ["set:seed=3"],
    ],
)
def test_directives_are_found(more: list[str]) -> None:
    done = found("config:base", *more)
    assert sorted(done.directives) == sorted(["config:base", *more])
    assert (done.is_same, done.left) == (True, [])


def test_a_config_that_cannot_be_bound_is_passed_over() -> None:
    bases = {"config:wrong": fdl.Config(Part, width=Width.new())} | BASES
    assert nearest(compose(["config:base", "set:seed=3"]), bases) == "config:base"
    with pytest.raises(ConfigError, match="no config to start from"):
        nearest(compose(["config:base"]), {})


def test_what_changes_nothing_is_left_out() -> None:
    directives = ["config:base", "set:num_steps=7", "set:seed=4", "set:num_steps=450"]
    assert found(*directives).directives == ["config:base", "set:seed=4"]


def test_a_tie_is_found() -> None:
    untied = ["config:base", "untie:model.unembedding.weight"]
    cfg, start = compose(untied[:1]), untied[:1]
    done = repro(cfg, start, compose=lambda given: compose([*untied, *given[1:]]))
    tie = "tie:model.unembedding.weight=model.embedding.weight"
    assert done.directives == ["config:base", tie]


def test_what_no_directive_makes_is_left_and_the_rest_is_made() -> None:
    cfg = compose(["config:base", "set:seed=3"])
    fdl.add_tag(cfg.optimizer, "betas", tags.WarmupSteps)
    done = repro(cfg, ["config:base"], compose=compose)
    assert done.directives == ["config:base", "set:seed=3"]
    assert not done.is_same
    assert list(map(str, done.left)) == ["~ optimizer.betas: tagged WarmupSteps"]


def test_directives_that_leave_more_differences_are_dropped() -> None:
    more = ["set:seed=3", "set:num_steps=7", "set:batch_size=2", "set:seq_len=64"]
    cfg = compose(["config:base", *more])
    fiddlers.use_qk_norm(cfg)  # whose norms inherit another width than those that one can put there
    done = repro(cfg, ["config:base"], compose=compose)
    assert not done.is_same
    assert sorted(done.directives) == sorted(["config:base", *more])


@pytest.mark.parametrize(
    "more",
    [
        ["set:trackers=[JSONLines(), Console()]"],
        ["set:trackers=[Console(), JSONLines(), JSONLines()]"],
        ["set:evaluators={'again': Validation(every=7, data=HeldOut(num_batches=2))}"],
        ["use:schedule=WarmupStableDecay", "use:schedule.decay_steps=fraction(ratio=0.4)"],
        ["use:micro_batch_size=fraction(of={seed} + 3, ratio=2.0)"],
        ["use:num_steps=fraction(of=40, ratio=2.0)"],
        ["set:schedule.warmup_steps*=2"],
        ["set:schedule.warmup_steps-=({seed} + 1) * 2"],
    ],
)
def test_lists_of_parts_and_what_is_computed(more: list[str]) -> None:
    cfg = compose(["config:base", *more])
    done = repro(cfg, ["config:base"], compose=compose)
    assert done.is_same
    assert fingerprint(compose(done.directives)) == fingerprint(cfg)
    assert [one for one in more if one not in done.directives] in ([], more)  # or another way
    assert len(done.directives) <= len(more) + 1 + ("evaluators" in more[0])


def test_a_fiddler_with_its_arguments_is_found_where_it_is_known() -> None:
    directives = ["config:base", "fiddler:use_gqa", "set:seed=1", "set:seed=3"]
    cfg = compose(directives)
    done = repro(cfg, directives, compose=compose)
    assert done.directives == ["config:base", "fiddler:use_gqa", "set:seed=3"]
    assert done.is_same


def test_what_is_known_and_makes_another_graph_is_completed() -> None:
    cfg = compose(["config:base", "set:seed=3"])
    done = repro(cfg, ["config:base", "set:seed=4"], compose=compose)
    assert done == Repro(["config:base", "set:seed=3"], [], True)


@pytest.mark.parametrize(
    ("value", "hint", "text"),
    [
        (1e-5, float, "1e-05"),
        ("two words", str, "two words"),
        ("3", Any, "'3'"),
        (Color.BLUE, Color, "BLUE"),
        ((0.9, 0.95), tuple[float, float], "(0.9, 0.95)"),
        ([Color.BLUE], list[Color], "[BLUE]"),
        ((Color.BLUE,), tuple[Color, ...], "(BLUE,)"),
        ({"a": Color.RED}, dict[str, Color], "{'a': RED}"),
        ([pathlib.Path("a, b")], list[pathlib.Path], "['a, b']"),
        (object(), Any, None),
    ],
)
def test_texts_of_values(value: Any, hint: Any, text: str | None) -> None:
    assert spell(value, hint) == text


def test_parameters_of_a_new_node_are_no_error() -> None:
    directives = ["config:base", "use::RMSNorm=LayerNorm(normalized_shape={HiddenDim})"]
    done = found(*directives)
    assert done.is_same
    assert "use:model.norm=LayerNorm(normalized_shape={HiddenDim})" in done.directives
