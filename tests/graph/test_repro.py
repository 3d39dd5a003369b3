"""Directives that make a graph again, checked by making it."""

import re
from collections.abc import Sequence
from typing import Any

import fiddle as fdl
import pytest
from torch import nn

from fidgpt import configs, data, fiddlers, model, optim, tags, train
from fidgpt.graph import clone, fingerprint
from fidgpt.graph.edits import change_by, delete, set_text, tie, untie, use
from fidgpt.graph.reproduce import Repro, repro
from fidgpt.late import exports

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
        ["del:evaluators['validation']"],
        ["set:samples.prompts=['x, y', 'it=1']"],
        ["untie:model.unembedding.weight"],
        ["use:model.blocks[0].mlp=GELU"],
        ["use:data.corpus.source=TextFiles(path='a b, c.txt')"],
        ["set:schedule.warmup_steps={num_steps} // 7"],
        ["set:model.norm.eps={seed} + 1", "set:optimizer.eps={seed} + 1"],
    ],
)
def test_directives_are_found(more: list[str]) -> None:
    done = found("config:base", *more)
    assert sorted(done.directives) == sorted(["config:base", *more])
    assert (done.is_same, done.left) == (True, [])


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


@pytest.mark.parametrize(
    "more",
    [
        ["set:trackers=[JSONLines(), Console()]"],
        ["set:evaluators={'again': Validation(every=7, data=HeldOut(num_batches=2))}"],
        ["use:schedule=WarmupStableDecay", "use:schedule.decay_steps=fraction(ratio=0.4)"],
        ["use:micro_batch_size=fraction(of={seed} + 3, ratio=2.0)"],
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
