"""A run whose batches grow goes on with the sequence after its last one, or not at all."""

import copy
from collections.abc import Callable

import fiddle as fdl
import pytest

from fidgpt.fiddlers import grow_batch, use_prefetch
from fidgpt.graph.checking.permissions import Permission, allowed_changes
from fidgpt.train import RunError, Trainer
from fidgpt.train.tracking.trackers import Row

Config = fdl.Config[Trainer]


def test_a_longer_run_that_would_read_sequences_again_is_refused(
    cfg: Config, train: Callable[..., list[Row]]
) -> None:
    grow_batch(cfg, over=0.5)
    use_prefetch(cfg)
    cfg.num_steps, cfg.batch_size, cfg.evaluators = 4, 4, {}
    train(cfg)
    longer = copy.deepcopy(cfg)
    longer.num_steps = 8
    with pytest.raises(RunError, match=r"read 3\.5 full batches in 4 steps, which .* be 2\.5: "):
        train(longer, resume=True)
    longer.data.stream.schedule.warmup = 2
    assert {one.permission for one in allowed_changes(cfg, longer)} == {Permission.RESTART}
    tokens = [row["tokens"] for row in train(longer, resume=True)]
    full = cfg.batch_size * cfg.seq_len
    assert tokens == [full * (number + 0.5) for number in range(8)]
