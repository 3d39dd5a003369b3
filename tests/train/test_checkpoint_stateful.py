"""What the further parts of a run remember is saved, and comes back to the last bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.train import CheckpointError, Checkpoints, Stateful

CHECKPOINTS = Checkpoints(every=1, keep_last=3)


class Memory:
    """Remembers whatever it is given."""

    def __init__(self, **remembered: Any) -> None:
        self.remembered = remembered

    def state_dict(self) -> dict[str, Any]:
        return self.remembered

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.remembered = state


def make() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters())}


def save(run: Path, **stateful: Stateful) -> Path:
    return CHECKPOINTS.save(run, step=1, state={}, stateful=stateful, **make())


def test_tensors_and_plain_values_come_back(tmp_path: Path) -> None:
    average = {"weight": torch.randn(2, 3, dtype=torch.float64).t(), "bias": torch.ones(2)}
    window = [0.1, float("inf"), None, (1, "a")]
    save(tmp_path, average=Memory(average=average, steps=7), window=Memory(window=window))
    back = {"average": Memory(), "window": Memory()}
    CHECKPOINTS.restore(tmp_path, stateful=back, **make())
    assert back["window"].remembered == {"window": window}
    assert back["average"].remembered["steps"] == 7
    for name, tensor in back["average"].remembered["average"].items():
        assert tensor.dtype == average[name].dtype and tensor.stride() == average[name].stride()
        assert torch.equal(tensor, average[name])


def test_a_part_that_one_side_does_not_know_is_refused(tmp_path: Path) -> None:
    save(tmp_path, old=Memory(a=1))
    given = make()
    before = given["model"].weight.clone()
    with pytest.raises(CheckpointError, match=r"new is missing; old is not part of this"):
        CHECKPOINTS.restore(tmp_path, stateful={"new": Memory()}, **given)
    assert torch.equal(given["model"].weight, before)
    with pytest.raises(CheckpointError, match="old is not part of this run"):
        CHECKPOINTS.restore(tmp_path, stateful={}, **make())


def test_where_the_config_changed_a_part_begins_anew_and_it_is_said(tmp_path: Path) -> None:
    path, told = save(tmp_path, old=Memory(a=1), stays=Memory(b=2)), []
    stateful = {"new": Memory(c=3), "stays": Memory()}
    CHECKPOINTS.restore(tmp_path, stateful=stateful, warn=told.append, **make())
    assert [part.remembered for part in stateful.values()] == [{"c": 3}, {"b": 2}]
    assert told == [
        f"new starts from its initial state: it is not in {path}.",
        f"old in {path} is ignored: this run has no such component.",
    ]


def test_a_part_in_the_place_of_another_kind_begins_anew(tmp_path: Path) -> None:
    path, told = save(tmp_path, average=Memory(weights=1)), []
    average = Memory(weights=2, total=3)
    with pytest.raises(CheckpointError, match="average is of another kind"):
        CHECKPOINTS.restore(tmp_path, stateful={"average": average}, **make())
    CHECKPOINTS.restore(tmp_path, stateful={"average": average}, warn=told.append, **make())
    assert average.remembered == {"weights": 2, "total": 3}
    assert told == [f"average starts from its initial state: {path} has another kind."]


def test_a_checkpoint_without_such_parts_serves_a_run_without(tmp_path: Path) -> None:
    save(tmp_path)
    assert CHECKPOINTS.restore(tmp_path, stateful={}, **make()) == (1, {})


def test_damage_to_what_they_remember_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, part=Memory(a=torch.ones(3)))
    file = path / "stateful.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"stateful\.safetensors has sha256"):
        CHECKPOINTS.restore(tmp_path, stateful={"part": Memory()}, **make())
    assert CHECKPOINTS.restore(tmp_path, model=make()["model"], optimizer=None) == (1, {})
