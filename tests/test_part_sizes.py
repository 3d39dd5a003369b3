"""The parameters of each part of a config are those of the modules that it becomes."""

import pytest
import torch

from fidgpt import configs, graph
from fidgpt.graph.page import Size
from fidgpt.runs.part_sizes import part_sizes


def sizes_of(name: str) -> tuple[dict[str, Size], int]:
    """The sizes of the parts of a named config, and the parameters of its model."""
    cfg = getattr(configs, name)()
    with torch.device("meta"):
        model = graph.build(cfg).model
    sizes = part_sizes(graph.bind(cfg).model, model, path="model")
    return sizes, sum(parameter.numel() for parameter in model.parameters())


def test_a_block_counts_once_for_each_layer() -> None:
    sizes, total = sizes_of("base")
    assert sizes["model"] == Size(1, total, 4 * total)  # float32
    attention, mlp = 4 * 256**2, 3 * 256 * 704
    assert sizes["model.blocks[0].attention"].parameters == 4 * attention
    block = attention + mlp + 2 * 256
    assert sizes["model.blocks[0]"] == Size(4, 4 * block, 4 * 4 * block)
    # Tied: one table, in both of its places, and once in the whole.
    assert sizes["model.embedding"] == sizes["model.unembedding"] == Size(1, 1024 * 256, 4 * 2**18)
    assert total == 4 * block + 256 + 1024 * 256


@pytest.mark.parametrize(
    ("name", "objects"),
    [
        ("deepseek_v3", {"model.first_blocks[0]": 1, "model.blocks[0]": 58}),
        # Five of six attend locally; layer 5, 11, ... 59 are global.
        ("gemma3_27b", {"model.blocks[0]": 11, "model.blocks[2]": 10, "model.blocks[5]": 10}),
        # The first layer is not of the pattern, whose first item is used by none.
        ("kimi_linear_48b_a3b", {"model.first_blocks[0]": 1, "model.blocks[1]": 1}),
    ],
)
def test_a_pattern_is_found_in_the_layers_that_it_becomes(
    name: str, objects: dict[str, int]
) -> None:
    sizes, total = sizes_of(name)
    assert {path: sizes[path].objects for path in objects} == objects
    layers = [size for path, size in sizes.items() if path.endswith("]") and path.count(".") == 1]
    others = ("model.embedding", "model.norm", "model.unembedding")
    whole = sum(size.parameters for size in layers) + sum(sizes[one].parameters for one in others)
    is_tied = name == "gemma3_27b"
    assert whole - is_tied * sizes["model.embedding"].parameters == total
    assert ("model.blocks[0]" in sizes) is (name != "kimi_linear_48b_a3b")
