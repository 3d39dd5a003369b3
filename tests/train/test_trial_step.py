"""An optimizer that cannot step a model's weights is refused before the run begins."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from fidgpt.train import RunError, Trainer
from fidgpt.train.step import check_step
from fidgpt.train.trackers.trackers import Row


def groups_of(*parameters: Tensor) -> list[dict[str, Any]]:
    return [{"name": "all", "params": list(parameters), "weight_decay": 0.0}]


class Blockwise(torch.optim.SGD):
    """Steps whole blocks of 16 numbers alone, as optimizers of few bits do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.numel() % 16:
                    raise AssertionError("no whole block")
        return super().step(closure)


class Forgetful(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise KeyError("what was never said")


def test_a_run_with_sparse_adam_is_refused_and_leaves_no_directory(
    cfg: fdl.Config[Trainer], train: Callable[..., list[Row]], tmp_path: Path
) -> None:
    cfg.optimizer = fdl.Partial(torch.optim.SparseAdam, lr=0.1)
    with pytest.raises(RunError, match=r"SparseAdam cannot step .*: SparseAdam does not support d"):
        train(cfg)
    assert not (tmp_path / "run").exists()


def test_weights_stay_and_those_of_their_size_are_asked_where_small_ones_fail() -> None:
    matrix, vector = nn.Parameter(torch.ones(8, 4)), nn.Parameter(torch.ones(16))
    check_step(Blockwise, groups_of(matrix, nn.Parameter(torch.ones(7, 9)), vector))
    assert matrix.grad is None and torch.equal(matrix, torch.ones(8, 4))
    with pytest.raises(RunError, match="Blockwise cannot step .*: no whole block"):
        check_step(Blockwise, groups_of(nn.Parameter(torch.ones(3, 3)), vector))


def test_whatever_fails_is_told() -> None:
    with pytest.raises(RunError, match=r"Forgetful cannot step .*: 'what was never said'\. Use"):
        check_step(Forgetful, groups_of(nn.Parameter(torch.ones(2))))


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[nn.Parameter]:
    """A matrix that is dealt over the processes of a group, which are one."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        yield nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
    finally:
        torch.distributed.destroy_process_group()


def test_what_cannot_step_weights_that_are_dealt(sharded: nn.Parameter) -> None:
    check_step(torch.optim.AdamW, groups_of(sharded))
    check_step(torch.optim.Rprop, groups_of(nn.Parameter(torch.ones(8, 4))))
    with pytest.raises(RunError, match="Rprop cannot .* sharded over 1 processes: .*DataParallel"):
        check_step(torch.optim.Rprop, [{"params": [sharded]}])
