"""Whole runs: what they leave, how they are resumed, and what is refused, recorded and observed."""

import copy
import gzip
import itertools
import json
import math
import os
import re
import shlex
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import fiddle as fdl
import pytest
import torch
from forked import Python
from run_facts import FACTS, metrics_row, tracking

from fidgpt import data, fiddlers
from fidgpt.graph import fingerprint
from fidgpt.graph.permissions import Permission, allowed_changes
from fidgpt.parallel import DataParallel
from fidgpt.runs.building import build_trainer
from fidgpt.runs.directories import load_run
from fidgpt.train import Console, JSONLines, RunDirectory, RunError, Trainer, derive_seed
from fidgpt.train.checkpoints import newest_good
from fidgpt.train.estimates.facts import check_resumable
from fidgpt.train.run_directory import StopSignals, resume_flag
from fidgpt.train.trackers import console
from fidgpt.train.trackers.trackers import Row, read_rows


def test_a_run_directory_is_made_once_with_its_texts(tmp_path):
    run = RunDirectory(tmp_path / "a" / "run", texts={"config.json": "{}"})
    assert not run.path.exists()
    run.create()
    assert (run.path / "config.json").read_text() == "{}"
    with pytest.raises(RunError, match=r"exists already(.|\n)*--resume="):
        run.create()


def test_what_prevents_a_run_directory_is_reported_early(tmp_path):
    (tmp_path / "file").touch()
    RunDirectory(tmp_path / "new" / "run", texts={}).require_free()
    with pytest.raises(RunError, match="is not a run: name another"):
        RunDirectory(tmp_path / "file", texts={}).require_free()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_process_at_a_time_trains_in_a_directory(tmp_path):
    run = RunDirectory(tmp_path, texts={})
    with run.locked(), pytest.raises(RunError, match="another process trains in"), run.locked():
        pass
    with run.locked():
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]  # a file, which NFS locks too


def test_a_flag_is_quoted_for_the_shell():
    assert resume_flag(Path("runs/a")) == "--resume=runs/a"
    assert shlex.split(resume_flag(Path("my runs/a"))) == ["--resume=my runs/a"]


def test_metrics_keep_full_precision_and_drop_what_a_checkpoint_does_not_know(tmp_path):
    run = RunDirectory(tmp_path, texts={})
    with tracking(run, JSONLines()) as trackers:
        for step in (1, 2, 3):
            trackers.log(metrics_row(step))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "lo')
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3]
    with tracking(run, JSONLines(), step=2) as trackers:
        trackers.log(metrics_row(3))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["loss"] == 1 / 3


def test_a_line_that_cannot_be_read_costs_no_other_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff\xfe\n{"step": 3}\n{"step": 4}\n{"st')
    assert read_rows(path) == [{"step": 1}, {"step": 3}, {"step": 4}]
    with tracking(tmp_path, JSONLines(), step=3):
        pass
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_rows_with_nan_are_strict_json_and_read_back(tmp_path):
    tracker = JSONLines()
    tracker.start(RunDirectory(tmp_path, texts={}), FACTS, step=0)
    tracker.log({"step": 1, "loss": math.nan, "grad_norm": math.inf, "change": -math.inf})
    tracker.finish()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["loss"] == "NaN"
    (row,) = read_rows(tmp_path / "metrics.jsonl")
    assert math.isnan(row["loss"]) and (row["grad_norm"], row["change"]) == (math.inf, -math.inf)


def test_a_signal_requests_a_stop_and_a_second_interrupt_forces_it():
    with StopSignals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sighup_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_seeds_differ_by_purpose_and_fit_a_signed_integer():
    seeds = {derive_seed(0, "init"), derive_seed(0, "data"), derive_seed(1, "init")}
    seeds |= {derive_seed(0, "data", epoch) for epoch in range(100)}
    assert len(seeds) == 103
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Written down, so that an old run starts as it did, in every Python and on every machine.
    assert derive_seed(0, "step", 1, 0) == 4520533044613826469


def test_the_console_shows_the_run_and_its_progress(tmp_path, monkeypatch, capsys):
    times = itertools.count(100.0, 30.0)
    monkeypatch.setattr(console.time, "monotonic", lambda: next(times))
    rest = {"seconds/forward": 0.5, "moe/z": 0.1, "grad_norm/matrices": 2.0}
    rows = [
        metrics_row(5) | {"samples": ["def [bold]:", "class"]},
        metrics_row(6) | rest | {"validation/loss": 1.5, "validation/bits_per_byte": 2.25},
        metrics_row(4) | rest | {"skipped": 1, "grad_norm": 1234.5, "loss": 1e308},  # it went back
    ]
    with tracking(tmp_path, Console(), step=4) as trackers:
        for row in rows:
            trackers.log(row)
    speed = "1,600 ms/step  5 tokens/s  25% of peak"
    printed = capsys.readouterr().out.partition("writes to")[2].splitlines()[1:]
    assert [line.rstrip() for line in printed] == [
        "resumes after      step 4",
        "step 5 writes: def [bold]:",
        "step 5 writes: class",
        f"step 5/10  loss 0.3333  lr 0.0003  grad norm 1.25  {speed}  left 0:02:30",
        "step 6: validation/loss 1.5000  validation/bits per byte 2.2500",
        f"step 6/10  loss 0.3333  lr 0.0003  grad norm 1.25  {speed}  left 0:02:00",
        "step 4 is skipped: loss 1e+308, gradient norm 1234",
        f"step 4/10  loss 1e+308  lr 0.0003  grad norm 1.23e+03  {speed}  left 0:03:00",
    ]


@pytest.mark.parametrize(
    ("width", "shown", "hidden"), [(80, "grad norm 1.25", "ms/step"), (160, "25% of peak", None)]
)
def test_the_bar_of_a_terminal_ends_as_a_line(tmp_path, monkeypatch, capsys, width, shown, hidden):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    with tracking(tmp_path, Console(), step=8) as trackers:
        for step in (9, 10):
            trackers.log(metrics_row(step))
        out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)  # without colours
        bar, sign, line = out.rpartition("step 10/10  ")
        trackers.print("Done")
    assert sign and "1,600 ms/step  5 tokens/s  25% of peak" in line
    assert "\x1b[2K" in bar and shown in bar and (hidden is None or hidden not in bar)
    assert "step" not in capsys.readouterr().out


def losses(rows: list[dict]) -> list[float]:
    return [row["loss"] for row in rows]


@pytest.mark.slow
def test_the_steps_that_were_asked_for_are_traced_and_change_nothing(cfg, train, tmp_path):
    cfg.num_steps = 4
    plain = train(cfg, "plain")
    fiddlers.use_profiler(cfg, begin=2, num_steps=2)
    assert losses(train(cfg)) == losses(plain)
    profile = tmp_path / "run" / "profile"
    assert sorted(path.name for path in profile.iterdir()) == ["rank0.json.gz", "rank0.txt"]
    events = json.loads(gzip.decompress((profile / "rank0.json.gz").read_bytes()))["traceEvents"]
    steps = [event for event in events if event.get("name", "").startswith("Optimizer.step")]
    assert len(steps) == 2
    assert "aten::" in (profile / "rank0.txt").read_text()


@pytest.mark.slow
def test_a_watchdog_leaves_nothing_of_a_run_that_went_well(cfg, train, tmp_path):
    cfg.num_steps = 2
    fiddlers.use_watchdog(cfg)
    train(cfg)
    assert not (tmp_path / "run" / "stacks").exists()


STOPPED = """
import os, signal, subprocess, sys, time
from pathlib import Path
from fidgpt.parallel import DataParallel
from fidgpt.train import RunDirectory, Watchdog

run = RunDirectory(Path({path!r}), texts={{}})
watchdog = Watchdog(seconds=2.0, first_seconds=60)
wake = "import os, signal, time; input(); time.sleep(3); os.kill({{}}, signal.SIGCONT)"
waking = subprocess.Popen([sys.executable, "-c", wake.format(os.getpid())], stdin=subprocess.PIPE)
with watchdog.observing(run, DataParallel()):
    for step in (1, 2):
        with watchdog.stepping(step):
            pass
    waking.stdin.write(b"now\\n")
    waking.stdin.flush()
    os.kill(os.getpid(), signal.SIGTSTP)
    with watchdog.stepping(3):
        {then}
waking.communicate()
assert signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL
print("alive")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("then", "status"), [("pass", 0), ("time.sleep(60)", 1)])
def test_time_in_which_the_process_is_stopped_does_not_count(tmp_path: Path, then: str, status):
    (tmp_path / "stops.py").write_text(STOPPED.format(path=str(tmp_path), then=then))
    process = Python(tmp_path / "stops.py", output=tmp_path / "output")
    assert process.end(seconds=100) == status, process.output
    assert ("alive" in process.output) == (status == 0)


class Asking:
    """Remembers whether torch was to be deterministic in each step."""

    seen: ClassVar[list[bool]] = []

    def observing(self, run: RunDirectory, parallel: DataParallel) -> AbstractContextManager[None]:
        return nullcontext()

    def stepping(self, step: int) -> AbstractContextManager[None]:
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        return nullcontext()


@pytest.mark.slow
def test_torch_is_deterministic_for_as_long_as_the_run_lasts(cfg, train):
    cfg.num_steps = 3
    fiddlers.use_moe(cfg)
    fiddlers.use_muon(cfg)
    plain = train(cfg, "plain")
    fiddlers.use_determinism(cfg)
    cfg.observers = [*cfg.observers, fdl.Config(Asking)]
    Asking.seen.clear()
    rows = train(cfg)
    assert Asking.seen == [True, True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    assert memory.fill_uninitialized_memory
    assert losses(rows) == losses(plain)


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
    assert losses(changed[:5]) == losses(same[:5])  # the loss of step 5 precedes its update
    assert losses(changed)[5] != losses(same)[5]


def test_a_run_directory_is_refused_before_the_text_is_read(cfg, train, tmp_path):
    (tmp_path / "run").mkdir()
    cfg.data.corpus.source = fdl.Config(data.TextFiles, path=str(tmp_path / "no text"))
    with pytest.raises(RunError, match="exists already"):
        train(cfg)


def test_text_that_changed_is_noticed_on_resume(cfg, train, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("all work and no play makes jack a dull boy\n" * 4000)
    cfg.data.corpus.source = fdl.Config(data.TextFiles, str(text))
    train(cfg)
    text.write_text("all play and no work makes jack a dull boy\n" * 4000)
    with pytest.raises(RunError, match="has changed since the run began"):
        train(cfg, resume=True)


def test_bad_text_ends_before_anything_is_written(cfg, train, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"too short")
    cfg.data.corpus.source = fdl.Config(data.TextFiles, str(tmp_path / "text.txt"))
    with pytest.raises(data.DataError, match="shorter|short"):
        train(cfg)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_global_random_state_decides_nothing(cfg, train):
    cfg.model.dropout = 0.2
    torch.manual_seed(1)
    first = train(cfg, "first")
    torch.manual_seed(2)
    assert losses(train(cfg, "second")) == losses(first)


@pytest.mark.slow
def test_a_run_in_stretches_has_the_numbers_of_one_that_was_not_ended(cfg, train, tmp_path, capsys):
    cfg.checkpoints.every = None
    whole = train(cfg, "whole")
    first = train(cfg, until_step=3)
    assert [row["step"] for row in first] == [1, 2, 3]
    assert newest_good(tmp_path / "run") == 3
    assert train(cfg, resume=True, until_step=3) == first  # it was there already
    assert "has done 3 steps already: nothing is left until 3." in capsys.readouterr().out
    train(cfg, resume=True, until_step=7)
    rows = train(cfg, resume=True, until_step=cfg.num_steps + 5)
    assert losses(rows) == losses(whole)
    assert rows[-1]["validation/loss"] == whole[-1]["validation/loss"]


Config = fdl.Config[Trainer]
Train = Callable[..., list[Row]]


@pytest.mark.slow
def test_a_longer_run_that_would_read_sequences_again_is_refused(cfg: Config, train: Train) -> None:
    fiddlers.grow_batch(cfg, over=0.5)
    fiddlers.use_prefetch(cfg)
    cfg.num_steps, cfg.batch_size, cfg.evaluators = 4, 4, {}
    train(cfg)
    longer = copy.deepcopy(cfg)
    longer.num_steps = 8
    with pytest.raises(RunError, match=r"read 3\.5 full batches in 4 steps, which .* be 2\.5: "):
        train(longer, resume=True)
    longer.batch_growth.schedule.warmup = 2
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


@pytest.mark.slow
def test_stages_that_began_stay_in_place(staged: Config, train: Train, tmp_path: Path) -> None:
    fiddlers.use_roll_back(staged)  # by which a run may be elsewhere in its text than its steps say
    train(staged)
    extended = longer(staged)
    messages = r"a stage from step 2 \(other 1\) on, .* has none there\. Keep"
    with pytest.raises(RunError, match=messages):
        check_resumable(build_trainer(extended), RunDirectory(tmp_path / "run", texts={}))
    with pytest.raises(RunError, match=messages):
        train(extended, resume=True)
    extended.data.stages[0].begin = 2
    assert {one.permission for one in allowed_changes(staged, extended)} == {Permission.RESTART}
    rows = train(extended, resume=True)
    assert losses(rows) == losses(train(extended, "at once"))


def test_stages_that_were_not_begun_move_with_the_run(staged: Config, train: Train) -> None:
    train(staged, until_step=2)
    extended = longer(staged)
    rows = train(extended, resume=True)
    assert losses(rows) == losses(train(extended, "at once"))
