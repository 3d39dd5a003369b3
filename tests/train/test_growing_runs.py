"""A run whose batches grow, or whose texts have stages, goes on where it was, or not at all."""

import copy
from collections.abc import Callable
from pathlib import Path

import fiddle as fdl
import pytest

from fidgpt.compose.runs import build_trainer
from fidgpt.fiddlers import grow_batch, use_mixture, use_prefetch, use_roll_back
from fidgpt.graph.permissions import Permission, allowed_changes
from fidgpt.train import RunDirectory, RunError, Trainer
from fidgpt.train.trackers.trackers import Row

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


@pytest.fixture
def staged(cfg: Config, tmp_path: Path) -> Config:
    """Four steps over two texts, the last two of them over the second alone."""
    text = tmp_path / "own.txt"
    text.write_text("One fish, two fish, red fish, blue fish. " * 200, encoding="utf-8")
    cfg.num_steps, cfg.batch_size, cfg.evaluators = 4, 4, {}
    use_mixture(cfg, {"other": str(text)}, stages={0.5: {"other": 1}})
    grow_batch(cfg, over=2)
    return cfg


def longer(cfg: Config) -> Config:
    graph = copy.deepcopy(cfg)
    graph.num_steps = 8
    graph.schedule.num_steps = 4  # which is not what is looked at
    return graph


def test_stages_that_were_begun_stay_where_they_were(
    staged: Config, train: Callable[..., list[Row]], tmp_path: Path
) -> None:
    use_roll_back(staged)  # by which a run may be elsewhere in its text than its steps say
    train(staged)
    extended = longer(staged)
    told = r"a stage from step 2 \(other 1\) on, .* has none there\. Keep"
    with pytest.raises(RunError, match=told):
        build_trainer(extended).check_resumable(RunDirectory(tmp_path / "run", texts={}))
    with pytest.raises(RunError, match=told):
        train(extended, resume=True)
    extended.data.stream.stages[0].begin = 2
    assert {one.permission for one in allowed_changes(staged, extended)} == {Permission.RESTART}
    rows = train(extended, resume=True)
    assert [row["loss"] for row in rows] == [row["loss"] for row in train(extended, "at once")]


def test_stages_that_were_not_begun_move_with_the_run(
    staged: Config, train: Callable[..., list[Row]]
) -> None:
    train(staged, until_step=2)
    extended = longer(staged)
    rows = train(extended, resume=True)
    assert [row["loss"] for row in rows] == [row["loss"] for row in train(extended, "at once")]
