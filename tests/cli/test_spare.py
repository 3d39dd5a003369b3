"""Blocks that no layer is made of are named, whether the graph is shown or run."""

from collections.abc import Callable
from typing import Any

import pytest

from fidgpt.cli import train
from fidgpt.compose.composition import compose
from fidgpt.compose.report import unused_blocks

UNROLLED = ["config:debug", "set:model.num_layers=4", "fiddler:unroll"]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ([], None),
        (["set:model.num_layers=8"], None),
        (["set:model.num_layers=6"], None),
        (["set:model.num_layers=2"], "model.blocks[2] to [3] make no layer: model.blocks has 4 "
         "entries, and model.num_layers is 2. Set the depth before fiddler:unroll."),
        (["set:model.num_layers={batch_size} + 1"], "model.blocks[3] makes no layer: model.blocks "
         "has 4 entries, and model.num_layers is 3. Set the depth before fiddler:unroll."),
    ],
)  # fmt: skip
def test_more_blocks_than_layers(more: list[str], line: str | None) -> None:
    cfg = compose([*UNROLLED, *more])
    assert unused_blocks(cfg) == ([line] if line else [])


@pytest.mark.parametrize("how", ["--print", "--dry_run"])
def test_they_are_named_by_the_command(command: Callable[..., Any], how: str) -> None:
    flags = [f"--config={one}" for one in [*UNROLLED, "set:model.num_layers=2"]]
    status, _, err = command(train.main, *flags, how)
    assert status == 0
    assert "warning: model.blocks[2] to [3] make no layer: " in err
