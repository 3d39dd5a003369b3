"""A preparation that is stopped or killed resumes after its finished shards, to the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidgpt.data import BPETokenizer, ByteTokenizer, DataError, TextFiles, prepare_corpus
from fidgpt.data.shards import SplitWriter

MakeSource = Callable[..., Any]
UNFINISHED = ".out.fidgpt-resumable-"


def prepared(source: Any, directory: Path, **options: Any) -> dict[str, bytes]:
    """The files of a corpus of bytes in small shards, by name."""
    options = {"tokenizer": ByteTokenizer(), "shard_tokens": 10_000, "num_workers": 2} | options
    prepare_corpus(
        source, directory=directory, validation_fraction=0.2, show_progress=False, **options
    )
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def fail_at(patch: pytest.MonkeyPatch, document: int, fail: Callable[[], None]) -> None:
    """Call `fail` when this document is written."""
    add, count = SplitWriter.add, iter(range(10**6))

    def add_or_fail(writer: SplitWriter, tokens: Any, *, num_bytes: int) -> bool:
        if next(count) == document:
            fail()
        return add(writer, tokens, num_bytes=num_bytes)

    patch.setattr(SplitWriter, "add", add_or_fail)


def interrupt() -> None:
    raise KeyboardInterrupt


def fill_disk() -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("fail", [interrupt, fill_disk])
def test_finished_shards_are_not_tokenized_again(
    documents: MakeSource,
    modules: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[], None],
) -> None:
    expected = prepared(documents(modules), tmp_path / "whole")
    source = documents(modules)
    with monkeypatch.context() as patch:
        fail_at(patch, 45, fail)
        with pytest.raises((KeyboardInterrupt, DataError)):
            prepared(source, tmp_path / "out")
    assert source.num_readings == 2
    (begun,) = (path for path in tmp_path.iterdir() if path.name.startswith(UNFINISHED))
    record = json.loads((begun / "record.json").read_text())
    finished = sum(split["bytes"] for split in record["splits"].values())
    assert finished > 45 * 2000 - 2 * 13_000

    tokenized: list[str] = []
    encode = ByteTokenizer.encode_batch

    def encode_and_count(self: ByteTokenizer, texts: Sequence[str]) -> list[np.ndarray]:
        tokenized.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(ByteTokenizer, "encode_batch", encode_and_count)
    assert prepared(source, tmp_path / "out") == expected
    assert source.num_readings == 3
    total = sum(len(text.encode()) for text in modules)
    assert sum(len(text.encode()) for text in tokenized) == total - finished
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


@pytest.mark.parametrize("record", ["other key", "{", '{"version": 1}'])
def test_only_the_same_preparation_is_resumed(
    documents: MakeSource,
    modules: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: str,
) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, 45, interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepared(documents(modules), tmp_path / "out")
    prepared(documents(modules), tmp_path / "neighbour")
    (begun,) = (path for path in tmp_path.iterdir() if path.name.startswith(UNFINISHED))
    texts = modules
    if record == "other key":
        texts = modules[:50]
    else:
        (begun / "record.json").write_text(record)
    other = prepared(documents(texts), tmp_path / "out")
    assert other == prepared(documents(texts), tmp_path / "expected")
    assert sorted(os.listdir(tmp_path)) == ["expected", "neighbour", "out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from fidgpt.data import BPETokenizer, TextFiles, encoders, preparation, prepare_corpus

text, place = Path(sys.argv[1]), Path(sys.argv[2])
encoders.BATCH_SIZE = 5_000


def prepare(directory, *, processes_from=10**9, num_workers=2):
    preparation.PROCESSES_FROM_BYTES = processes_from
    prepare_corpus(TextFiles(text), tokenizer=BPETokenizer(vocab_size=300), directory=directory,
                   shard_tokens=6_000, num_workers=num_workers, show_progress=False)


def forked(work):
    if (child := os.fork()) == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(number):
    count = iter(range(10**6))
    def hook(event, arguments):
        # All that changes the disk, and each document.
        if event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"):
            if str(place) in str(arguments[0]) and next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    add = preparation.SplitWriter.add
    def add_and_count(*arguments, **options):
        hook("open", [place])
        return add(*arguments, **options)
    preparation.SplitWriter.add = add_and_count


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def try_at(number):
    # Killed there, and once more a little later; then left alone.
    directory = place / f"out{number}"
    def first():
        kill_at(number)
        prepare(directory, processes_from=0 if number % 10 == 0 else 10**9)
    def second():
        kill_at(7)
        prepare(directory)
    if forked(first) == 0:
        return False
    forked(second)
    assert forked(lambda: prepare(directory, num_workers=1 + number % 3)) == 0, number
    assert files(directory) == expected, number
    return True


assert forked(lambda: prepare(place / "whole")) == 0
expected = files(place / "whole")
number = 0
while try_at(number):
    number += int(sys.argv[3])
print("killed", number, sorted(path.name for path in place.glob(".*")))
"""


@pytest.mark.xdist_group("prepare")
def test_killed_at_any_point_and_again_it_ends_with_the_same_bytes(
    modules: list[str], tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    for number, text in enumerate(modules[:30]):
        (tmp_path / "text" / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "place").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "text"), str(tmp_path / "place"), "23"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[1]) > 100, "there were not as many points as expected"
    assert "resumable" not in done.stdout


@pytest.mark.xdist_group("prepare")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_processes_write_what_threads_write(
    documents: MakeSource,
    modules: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
) -> None:
    texts = ["<|endoftext|> is text", "line\r\n\x00 end", *modules, "\N{SNOWMAN}" * 3000]
    spec = BPETokenizer(vocab_size=400)
    monkeypatch.setattr("fidgpt.data.encoders.BATCH_SIZE", 5_000)
    expected = prepared(documents(texts), tmp_path / "threads", tokenizer=spec)
    monkeypatch.setattr("fidgpt.data.preparation.PROCESSES_FROM_BYTES", 0)
    made = prepared(
        documents(texts), tmp_path / "processes", tokenizer=spec, num_workers=num_workers
    )
    assert made == expected


@pytest.mark.xdist_group("prepare")
def test_a_killed_process_is_reported_and_finished_shards_are_kept(
    documents: MakeSource, modules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fidgpt.data.preparation.PROCESSES_FROM_BYTES", 0)
    monkeypatch.setattr("fidgpt.data.encoders.BATCH_SIZE", 5_000)
    started: list[subprocess.Popen[Any]] = []
    start: Any = subprocess.Popen

    def start_and_keep(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
        started.append(start(*arguments, **options))
        return started[-1]

    spec = BPETokenizer(vocab_size=400)
    with monkeypatch.context() as patch:
        patch.setattr("fidgpt.data.encoders.subprocess.Popen", start_and_keep)
        fail_at(patch, 20, lambda: started[0].send_signal(signal.SIGKILL))
        with pytest.raises(DataError, match=r"ended with status -9(.|\n)*--num_workers"):
            prepared(documents(modules), tmp_path / "out", tokenizer=spec)
    assert [process.poll() is not None for process in started] == [True, True]
    made = prepared(documents(modules), tmp_path / "out", tokenizer=spec)
    assert made == prepared(documents(modules), tmp_path / "whole", tokenizer=spec)


ORPHANED = """
import os, signal, subprocess, sys
from fidgpt.data import BPETokenizer, TextFiles, preparation, prepare_corpus

preparation.PROCESSES_FROM_BYTES = 0
start, add = subprocess.Popen, preparation.SplitWriter.add
def start_and_print(*arguments, **options):
    process = start(*arguments, **options)
    print(process.pid, flush=True)
    return process
subprocess.Popen = start_and_print
preparation.SplitWriter.add = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
prepare_corpus(TextFiles(sys.argv[1]), tokenizer=BPETokenizer(vocab_size=300),
               directory=sys.argv[2], num_workers=1, show_progress=False)
"""


@pytest.mark.xdist_group("prepare")
def test_processes_end_with_the_one_that_started_them(modules: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(modules[:10]), encoding="utf-8")
    command = [sys.executable, "-c", ORPHANED, str(tmp_path / "a.txt"), str(tmp_path / "out")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    worker = Path("/proc") / done.stdout.split()[0]
    deadline = time.monotonic() + 20
    while worker.exists() and "Z" not in (worker / "stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    source = TextFiles(tmp_path / "a.txt")
    assert prepared(source, tmp_path / "out") == prepared(source, tmp_path / "whole")
