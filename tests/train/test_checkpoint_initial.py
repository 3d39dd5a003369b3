"""A new run starts from the weights of another one, and prints which."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from fidgpt.train import CheckpointError, Checkpoints, initial_weights


class Model(nn.Module):
    """A table, two blocks and a head that is the table."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints 1 and 2 of different weights."""
    for step in (1, 2):
        model = filled(step)
        Checkpoints(every=1, keep_last=2).save(
            tmp_path,
            step=step,
            model=model,
            optimizer=torch.optim.SGD(model.parameters()),
            state={},
        )
    return tmp_path


def filled(value: float, **arguments: Any) -> Model:
    model = Model(**arguments)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def values(model: Model) -> list[float]:
    return [parameter.detach().float().mean().item() for parameter in model.parameters()]


def test_all_of_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = filled(0.0)
    initial_weights(model, run)
    assert values(model) == [2.0, 2.0, 2.0]
    assert model.head.weight is model.embedding.weight
    names = "embedding.weight, blocks.0.weight, blocks.1.weight"
    assert capsys.readouterr().err == f"begins with 3 tensors (60 numbers) of {run}: {names}.\n"


def test_of_a_chosen_step_and_of_a_checkpoint_and_of_a_file(run: Path) -> None:
    model, folder = filled(0.0), run / "checkpoints" / "step_00000001"
    initial_weights(model, run, step=1)
    assert values(model) == [1.0, 1.0, 1.0]
    initial_weights(model, run / "checkpoints" / "step_00000002")
    assert values(model) == [2.0, 2.0, 2.0]
    initial_weights(model, str(folder / "model.safetensors"))
    assert values(model) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["embedding"], [2.0, 0.0, 0.0]),
        (["blocks.*"], [0.0, 2.0, 2.0]),
        (["blocks.1", "embedding.weight"], [2.0, 0.0, 2.0]),
    ],
)
def test_parts_of_it_by_path(
    run: Path, only: list[str], expected: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    model = filled(0.0)
    initial_weights(model, run, only=only)
    assert values(model) == expected
    _, *lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0].rpartition("tensors ")[2] for line in lines] == [
        "keep their initial values",
        "there are not used",
    ]


def test_under_other_names(run: Path) -> None:
    model = filled(0.0)
    weights = {f"old.{i}.w": torch.full((4, 4), 5.0 + i) for i in range(2)}
    safetensors.torch.save_file(weights | {"wte": torch.full((7, 4), 9.0)}, run / "x.safetensors")
    renamed = {"blocks.*.weight": "old.*.w", "embedding.weight": "wte"}
    initial_weights(model, run / "x.safetensors", renamed=renamed)
    assert values(model) == [9.0, 5.0, 6.0]
    initial_weights(model, run, only=["blocks.0"], renamed={"blocks.0": "blocks.1"})
    assert values(model) == [9.0, 2.0, 6.0]


def test_other_number_formats_are_rounded(run: Path) -> None:
    model = filled(0.0).to(torch.bfloat16)
    initial_weights(model, run)
    assert values(model) == [2.0, 2.0, 2.0] and model.head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": ["embeding"]}, r"only='embeding' matches nothing in the model, which has embed"),
        ({"only": []}, r"only=\[\] selects no weights: name some, .* or omit `only`"),
        (
            {"only": ["embedding"], "renamed": {"embedding": "wte"}},
            r"does not have wte.weight \(for embedding.weight\); it has .* with `renamed`",
        ),
        ({"renamed": {"blocks.0": "x"}}, r"does not have x.weight \(for blocks.0.weight\); it"),
        ({"renamed": {"block.0": "x"}}, r"renamed={'block.0': ...} matches nothing in the model"),
        ({"renamed": {"*.*": "x.*"}}, r"renamed={'\*.\*': 'x.\*'} must have one `\*` on both"),
        ({"renamed": {"blocks.*": "x"}}, r"must have one `\*` on both sides, or none"),
        ({"only": ["head.weight"]}, "matches nothing in the model"),
        ({"step": 3}, "holds no step 3; it holds 1, 2.\nThe newest good .* 2: use .* step=2$"),
    ],
)
def test_missing_weights_are_named(run: Path, arguments: dict[str, Any], message: str) -> None:
    model = filled(0.0)
    with pytest.raises(CheckpointError, match=message):
        initial_weights(model, run, **arguments)
    assert values(model) == [0.0, 0.0, 0.0]


def test_all_mismatched_shapes_are_named(run: Path) -> None:
    model = filled(0.0, width=5)
    with pytest.raises(CheckpointError) as error:
        initial_weights(model, run)
    first, *rest = str(error.value).splitlines()
    assert first == f"{run} has weights of other shapes:"
    assert (
        rest[0]
        == "  blocks.0.weight: float32 [4, 4] in the checkpoint, float32 [5, 5] in the model"
    )
    assert len(rest) == 3 and values(model) == [0.0, 0.0, 0.0]


def test_a_damaged_run_and_none_at_all(run: Path) -> None:
    (run / "checkpoints" / "step_00000002" / "model.safetensors").write_bytes(b"")
    for path in (run, run / "checkpoints" / "step_00000002"):
        with pytest.raises(CheckpointError, match=r"step_00000002 is damaged: model\.safetensors"):
            initial_weights(Model(), path)
    for path in (run / "checkpoints" / "step_00000001", run / "x.safetensors"):
        if path.suffix:
            path.touch()
        with pytest.raises(CheckpointError, match=r"step=1 needs a run, and .* is not one: omit"):
            initial_weights(Model(), path, step=1)
    with pytest.raises(CheckpointError, match="holds no checkpoint of a run: name a run"):
        initial_weights(Model(), run / "checkpoints")
    (run / "hub").mkdir()
    (run / "hub" / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"There is .*hub/model\.safetensors, for one"):
        initial_weights(Model(), run / "hub")
    (run / "notes").write_text("no tensors")
    with pytest.raises(CheckpointError, match="notes is not a safetensors file: Error while"):
        initial_weights(Model(), run / "notes")
    with pytest.raises(CheckpointError, match="nowhere does not exist: name a run"):
        initial_weights(Model(), run / "nowhere")
