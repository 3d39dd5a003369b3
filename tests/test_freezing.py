"""The fiddler `freeze`: which parameters are not trained, and that they stay as they are."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, dump
from fidgpt.optim import AllBut
from fidgpt.runs.building import build_trainer
from fidgpt.train import RunDirectory
from fidgpt.train.estimates.facts import trainable_copy


def composed(*directives: str) -> Any:
    return compose(directives).config


def frozen_in(*directives: str) -> set[str]:
    trainer = build_trainer(composed(*directives))
    named = trainable_copy(trainer.model, trainer.trainable).named_parameters()
    return {name for name, one in named if not one.requires_grad}


def in_layers(names: set[str]) -> set[int]:
    return {int(name.split(".")[1]) for name in names if name.startswith("blocks.")}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("model.embedding", {"embedding.weight"}),
        ("model.unembedding", {"embedding.weight"}),  # tied
        ("model.norm", {"norm.weight"}),
        (
            "model.blocks[0].mlp_norm",
            {"blocks.0.mlp_norm.weight", "blocks.1.mlp_norm.weight"},
        ),
    ],
)
def test_what_is_frozen(path: str, names: set[str]) -> None:
    assert frozen_in("config:debug", f"fiddler:freeze({path})") == names


def test_blocks_of_a_pattern_are_frozen_in_all_their_layers() -> None:
    start = ["config:debug", "set:model.num_layers=5", "fiddler:use_sliding_window(8, every=2)"]
    assert in_layers(frozen_in(*start, "fiddler:freeze(model.blocks[1])")) == {1, 3}
    assert in_layers(frozen_in(*start, "fiddler:freeze(model.blocks)")) == {0, 1, 2, 3, 4}
    unrolled = [*start, "fiddler:unroll", "fiddler:freeze(model.blocks[3].mlp)"]
    assert in_layers(frozen_in(*unrolled)) == {3}
    assert in_layers(frozen_in(*start, "fiddler:freeze(model.blocks[1])", "fiddler:unroll")) == {
        1,
        3,
    }
    first = [
        "config:debug",
        "set:model.num_layers=4",
        "fiddler:use_moe(num_experts=2, top_k=1, first_dense=1)",
    ]
    assert in_layers(frozen_in(*first, "fiddler:freeze(model.first_blocks[0])")) == {0}
    assert in_layers(frozen_in(*first, "fiddler:freeze(model.blocks[0].attention)")) == {1, 2, 3}


def test_something_must_be_left() -> None:
    everything = ("embedding", "blocks", "norm")
    freezing = [f"fiddler:freeze(model.{one})" for one in everything]
    with pytest.raises(ConfigError, match="selects no parameter .* nothing would be trained"):
        build_trainer(composed("config:debug", *freezing))
    with pytest.raises(ConfigError, match="valu has no adapter; query, key, value, out, gate"):
        build_trainer(composed("config:debug", "fiddler:use_lora(modules=[query, valu])"))
    with pytest.raises(ValueError, match=r"write blocks\[3\], or blocks\[1::2\]"):
        AllBut(["blocks[a]"])


@pytest.mark.slow
def test_a_run_leaves_what_is_frozen(tmp_path: Path) -> None:
    def after(num_steps: int) -> dict[str, nn.Parameter]:
        cfg = composed(
            *("config:debug", "fiddler:freeze(model.embedding)", f"set:num_steps={num_steps}"),
            *("set:samples=None", "set:evaluators={}", "set:schedule.warmup_steps=1"),
            *("set:trackers=[]", "set:optimizer.lr=0.1"),
        )
        trainer = build_trainer(cfg)
        trainer.train(RunDirectory(tmp_path / str(num_steps), texts={"config.json": dump(cfg)}))
        return dict(trainer.model.named_parameters())

    one, two = after(1), after(3)
    same = {name for name in one if one[name].equal(two[name])}
    assert same == {"embedding.weight"}
