"""A warning that one directive overrules another is given where it is true, and only there."""

from pathlib import Path

import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.report import overruled
from fidgpt.graph import dump_patch

OWN = own_catalogue()


def told(*directives: str) -> list[str]:
    return list(overruled(compose(["config:debug", *directives], OWN)))


@pytest.mark.parametrize(
    ("path", "directives"),
    [
        ("seed", ["set:seed=3", "set:seed=4"]),
        ("trackers[1]", ["set:trackers[-1]=Console", "set:trackers[1]=TensorBoard"]),
        ("seed", ["set:seed=3", "fiddler:use_gelu", "set:seed=4"]),
        ("seed", ["set:seed=3", "del:seed"]),
        ("seed", ["set:seed+=3", "set:seed=4"]),
        ("schedule.warmup_steps", ["set:schedule.warmup_steps=7", "tag:WarmupSteps=9"]),
        ("model.hidden_dim", ["set:model.hidden_dim=128", "fiddler:make_large"]),
        ("model.hidden_dim", ["fiddler:make_large", "set:model.hidden_dim=128"]),
        ("model.norm", ["use:model.norm=LayerNorm", "use:model.norm=RMSNorm(eps=1e-3)"]),
        ("schedule.min_lr_ratio", ["fiddler:use_linear(0.3)", "set:schedule.min_lr_ratio=0.2"]),
        ("schedule", ["use:schedule=WarmupStableDecay(decay_steps=5)", "fiddler:use_linear"]),
        ("model.num_layers", ["set:model.num_layers={batch_size}", "set:model.num_layers=3"]),
    ],
)
def test_a_word_of_which_nothing_is_left(path: str, directives: list[str]) -> None:
    (line,) = told(*directives)
    number = len(directives) + 1
    assert line == (
        f"{directives[-1]} (directive {number}) overrules {path} as set by {directives[0]} "
        "(directive 2)."
    )


@pytest.mark.parametrize(
    "directives",
    [
        # The fiddler keeps, under another name, what the config had said.
        ["fiddler:use_linear", "tag:WarmupSteps=7"],
        ["set:schedule.warmup_steps=7", "fiddler:use_linear"],
        # The later one goes by the earlier one.
        ["set:seed=3", "set:seed*=2"],
        ["tag:LearningRate=2e-3", "tag:LearningRate*=2"],
        ["tag:LearningRate=2e-3", "fiddler:scale_learning_rate(0.5)"],
        ["set:model.num_layers=3", "fiddler:scale_depth(2)"],
        # What is said of a whole, and then of a piece of it.
        ["use:model.norm=LayerNorm", "set:model.norm.eps=1e-3"],
        ["fiddler:unroll", "set:model.blocks[1].attention.num_kv_heads=1"],
        # Where the first one spoke, another part stands since.
        ["set:model.norm.eps=1e-3", "fiddler:use_layer_norm", "set:seed=4"],
        ["fiddler:unroll", "set:model.blocks[1].mlp.ffn_dim=64", "fiddler:scale_depth(2)"],
        ["set:seed=3", "set:seed=3"],
    ],
)
def test_a_word_that_is_not_in_vain(directives: list[str]) -> None:
    assert told(*directives) == []


def test_of_three_words_each_overrules_the_one_before() -> None:
    lines = told("set:seed=3", "set:seed=4", "set:seed=5")
    assert [line.partition(" overrules")[0] for line in lines] == [
        "set:seed=4 (directive 3)",
        "set:seed=5 (directive 4)",
    ]


def test_a_patch_knows_which_value_it_replaces(tmp_path: Path) -> None:
    file = tmp_path / "seed.patch"
    graphs = [compose(["config:debug", f"set:seed={seed}"], OWN).config for seed in (3, 4)]
    file.write_text(dump_patch((graphs[0], graphs[1])), encoding="utf-8")
    assert told("set:seed=3", f"patch:{file}") == []
