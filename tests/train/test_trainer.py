"""Whole runs: what they leave, how they are resumed, and what is refused."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import fiddle as fdl
import pytest
import torch

from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.compose.sources import load_run
from fidgpt.data import DataError, TextFiles
from fidgpt.graph import fingerprint
from fidgpt.graph.permissions import Permission, allowed_changes
from fidgpt.train import RunDirectory, RunError, Trainer
from fidgpt.train.checkpoints import newest_good
from fidgpt.train.trackers.trackers import Row, read_rows


def test_a_run_leaves_all_that_is_needed_to_run_again(cfg, train, tmp_path):
    rows = train(cfg)
    assert [row["step"] for row in rows] == list(range(1, cfg.num_steps + 1))
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert {"validation/loss", "validation/bits_per_byte"} <= rows[-1].keys()
    assert newest_good(tmp_path / "run") == cfg.num_steps
    assert (tmp_path / "run" / "tokenizer.json").exists()
    assert fingerprint(load_run(tmp_path / "run")) == fingerprint(cfg)


def test_a_setting_that_changed_takes_effect_on_resume_and_the_others_stay(cfg, train):
    cfg.num_steps = 4
    train(cfg)
    cfg.num_steps = 6
    same = train(cfg, resume=True)
    cfg.optimizer.weight_decay = 50.0
    changed = train(cfg, resume=True, resume_step=4)
    assert _losses(changed[:5]) == _losses(same[:5])  # the loss of step 5 precedes its update
    assert _losses(changed)[5] != _losses(same)[5]


def test_a_way_that_was_left_is_not_returned_to(cfg, train, tmp_path, monkeypatch):
    cfg.checkpoints.keep_last = 5
    whole = train(cfg)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fidgpt.train.Trainer.update", die)
        with pytest.raises(KeyboardInterrupt):
            train(cfg, resume=True, resume_step=6)
    assert newest_good(tmp_path / "run") == 6
    assert _losses(train(cfg, resume=True)) == _losses(whole)


def test_a_run_directory_is_refused_before_the_text_is_read(cfg, train, tmp_path):
    (tmp_path / "run").mkdir()
    cfg.data.corpus.source = fdl.Config(TextFiles, path=str(tmp_path / "no text"))
    with pytest.raises(RunError, match="exists already"):
        train(cfg)


def test_text_that_changed_is_noticed_on_resume(cfg, train, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("all work and no play makes jack a dull boy\n" * 4000)
    cfg.data.corpus.source = fdl.Config(TextFiles, str(text))
    train(cfg)
    text.write_text("all play and no work makes jack a dull boy\n" * 4000)
    with pytest.raises(RunError, match="has changed since the run began"):
        train(cfg, resume=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"too short", "shorter|short"),
    ],
)
def test_bad_text_ends_before_anything_is_written(cfg, train, tmp_path, content, message):
    (tmp_path / "text.txt").write_bytes(content)
    cfg.data.corpus.source = fdl.Config(TextFiles, str(tmp_path / "text.txt"))
    with pytest.raises(DataError, match=message):
        train(cfg)
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_ends_before_it_saves(cfg, train, tmp_path):
    cfg.optimizer.lr = 1e10
    cfg.checkpoints.every = 1
    with pytest.raises(RunError, match=r"step \d diverged: loss is nan(.|\n)*--resume="):
        train(cfg)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert rows and all(math.isfinite(row["loss"]) for row in rows)
    assert newest_good(tmp_path / "run") == len(rows)


def test_a_run_that_another_process_trains_is_left_alone(cfg, train, tmp_path):
    rows = train(cfg)
    with (
        RunDirectory(tmp_path / "run", texts={}).locked(),
        pytest.raises(RunError, match="another process trains"),
    ):
        train(cfg, resume=True, resume_step=8)
    assert read_rows(tmp_path / "run" / "metrics.jsonl") == rows


def test_global_random_state_decides_nothing(cfg, train):
    cfg.model.dropout = 0.2
    torch.manual_seed(1)
    first = train(cfg, "first")
    torch.manual_seed(2)
    assert _losses(train(cfg, "second")) == _losses(first)


def _losses(rows):
    return [row["loss"] for row in rows]


def test_a_run_in_stretches_has_the_numbers_of_one_that_was_not_ended(cfg, train, tmp_path):
    cfg.checkpoints.every = None
    whole = train(cfg, "whole")
    first = train(cfg, until_step=3)
    assert [row["step"] for row in first] == [1, 2, 3]
    assert newest_good(tmp_path / "run") == 3
    assert train(cfg, resume=True, until_step=3) == first  # it was there already
    train(cfg, resume=True, until_step=7)
    rows = train(cfg, resume=True, until_step=cfg.num_steps + 5)
    assert [row["loss"] for row in rows] == [row["loss"] for row in whole]
    assert rows[-1]["validation/loss"] == whole[-1]["validation/loss"]


Config = fdl.Config[Trainer]


def test_a_longer_run_that_would_read_sequences_again_is_refused(
    cfg: Config, train: Callable[..., list[Row]]
) -> None:
    fiddlers.grow_batch(cfg, over=0.5)
    fiddlers.use_prefetch(cfg)
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
    fiddlers.use_mixture(cfg, {"other": str(text)}, stages={0.5: {"other": 1}})
    fiddlers.grow_batch(cfg, over=2)
    return cfg


def longer(cfg: Config) -> Config:
    graph = copy.deepcopy(cfg)
    graph.num_steps = 8
    graph.schedule.num_steps = 4  # which is not what is looked at
    return graph


def test_stages_that_were_begun_stay_where_they_were(
    staged: Config, train: Callable[..., list[Row]], tmp_path: Path
) -> None:
    fiddlers.use_roll_back(staged)  # by which a run may be elsewhere in its text than its steps say
    train(staged)
    extended = longer(staged)
    messages = r"a stage from step 2 \(other 1\) on, .* has none there\. Keep"
    with pytest.raises(RunError, match=messages):
        build_trainer(extended).check_resumable(RunDirectory(tmp_path / "run", texts={}))
    with pytest.raises(RunError, match=messages):
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
