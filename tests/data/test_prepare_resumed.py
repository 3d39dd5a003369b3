"""A preparation that was stopped, even killed, goes on where it was, to the same bytes."""

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


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record after every few documents."""
    monkeypatch.setattr("fidgpt.data.preparation._PIECE_BYTES", 20_000)
    monkeypatch.setattr("fidgpt.data.encoders._BATCH_BYTES", 5_000)


def prepared(source: Any, directory: Path, **options: Any) -> dict[str, bytes]:
    """The files of a corpus of bytes, by name."""
    options = {"tokenizer": ByteTokenizer(), "shard_tokens": 25_000, "num_workers": 2} | options
    prepare_corpus(
        source, directory=directory, validation_fraction=0.2, show_progress=False, **options
    )
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def stop_at(monkeypatch: pytest.MonkeyPatch, document: int, error: BaseException) -> None:
    """Fails when so many documents were written."""
    add, count = SplitWriter.add, iter(range(10**6))

    def adding(writer: SplitWriter, tokens: Any, *, num_bytes: int) -> None:
        if next(count) == document:
            raise error
        add(writer, tokens, num_bytes=num_bytes)

    monkeypatch.setattr(SplitWriter, "add", adding)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_is_finished_is_neither_read_nor_tokenized_again(
    documents: MakeSource,
    modules: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    expected = prepared(documents(modules), tmp_path / "whole")
    source = documents(modules)
    with monkeypatch.context() as patch:
        stop_at(patch, 45, error)
        with pytest.raises((KeyboardInterrupt, DataError)):
            prepared(source, tmp_path / "out")
    assert source.num_readings == 2
    (begun,) = (path for path in tmp_path.iterdir() if path.name.startswith(UNFINISHED))
    record = json.loads((begun / "record.json").read_text())
    finished = sum(split["bytes"] for split in record["splits"].values())
    assert finished > 45 * 3000 - 20_000 - 10_000

    tokenized = []
    encode = ByteTokenizer.encode_batch

    def encode_and_tell(self: ByteTokenizer, texts: Sequence[str]) -> list[np.ndarray]:
        tokenized.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(ByteTokenizer, "encode_batch", encode_and_tell)
    assert prepared(source, tmp_path / "out") == expected
    assert source.num_readings == 3
    total = sum(len(text.encode()) for text in modules)
    assert sum(len(text.encode()) for text in tokenized) == total - finished
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


def test_what_was_begun_for_something_else_is_not_gone_on_with(
    documents: MakeSource, modules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 45, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepared(documents(modules), tmp_path / "out")
    # A neighbour leaves it alone; the same directory with other options does not.
    prepared(documents(modules), tmp_path / "neighbour")
    assert [name for name in os.listdir(tmp_path) if name.startswith(UNFINISHED)]
    other = prepared(documents(modules[:50]), tmp_path / "out")
    assert other == prepared(documents(modules[:50]), tmp_path / "expected")
    assert sorted(os.listdir(tmp_path)) == ["expected", "neighbour", "out"]


def test_a_record_that_is_not_true_is_named(
    documents: MakeSource, modules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 45, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepared(documents(modules), tmp_path / "out")
    (begun,) = (path for path in tmp_path.iterdir() if path.name.startswith(UNFINISHED))
    last = sorted(begun.glob("train-*.bin"))[-1]
    last.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{last.name} has 0 bytes(.|\n)*rm -r .*{UNFINISHED}"):
        prepared(documents(modules), tmp_path / "out")
    (begun / "record.json").write_text("{")
    with pytest.raises(DataError, match="cannot be gone on with"):
        prepared(documents(modules), tmp_path / "out")


KILLED = """
import os, signal, sys
from pathlib import Path
from fidgpt.data import BPETokenizer, TextFiles, prepare_corpus
from fidgpt.data.preparing import encoders, writing

text, place = Path(sys.argv[1]), Path(sys.argv[2])
writing._PIECE_BYTES, encoders._BATCH_BYTES = 20_000, 5_000


def prepare(directory, *, processes_from=10**9, num_workers=2):
    writing._PROCESSES_FROM_BYTES = processes_from
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
        # All that changes what lies on the disk, and each document.
        if event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"):
            if str(place) in str(arguments[0]) and next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    writing.SplitWriter.add = adding(writing.SplitWriter.add, hook)


def adding(add, hook):
    def add_and_count(*arguments, **options):
        hook("open", [place])
        add(*arguments, **options)
    return add_and_count


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
def test_killed_at_any_point_and_once_more_it_ends_with_the_same_bytes(
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
    expected = prepared(documents(texts), tmp_path / "threads", tokenizer=spec)
    monkeypatch.setattr("fidgpt.data.preparation._PROCESSES_FROM_BYTES", 0)
    made = prepared(
        documents(texts), tmp_path / "processes", tokenizer=spec, num_workers=num_workers
    )
    assert made == expected


@pytest.mark.xdist_group("prepare")
def test_a_process_that_is_killed_is_said_and_the_rest_is_kept(
    documents: MakeSource, modules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fidgpt.data.preparation._PROCESSES_FROM_BYTES", 0)
    started: list[subprocess.Popen[bytes]] = []
    start, add, count = subprocess.Popen, SplitWriter.add, iter(range(10**6))

    def starting(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    def adding(writer: SplitWriter, tokens: Any, *, num_bytes: int) -> None:
        if next(count) == 20:
            started[0].send_signal(signal.SIGKILL)
        add(writer, tokens, num_bytes=num_bytes)

    spec = BPETokenizer(vocab_size=400)
    with monkeypatch.context() as patch:
        patch.setattr("fidgpt.data.encoders.subprocess.Popen", starting)
        patch.setattr(SplitWriter, "add", adding)
        with pytest.raises(DataError, match=r"ended with status -9(.|\n)*--num_workers"):
            prepared(documents(modules), tmp_path / "out", tokenizer=spec)
    assert [process.poll() is not None for process in started] == [True, True]
    made = prepared(documents(modules), tmp_path / "out", tokenizer=spec)
    assert made == prepared(documents(modules), tmp_path / "whole", tokenizer=spec)


ORPHANED = """
import os, signal, sys
from fidgpt.data import BPETokenizer, TextFiles, prepare_corpus
from fidgpt.data.preparing import encoders, writing

writing._PROCESSES_FROM_BYTES = 0
ask = encoders._ask
def ask_and_die(process, texts):
    print(process.pid, flush=True)
    ask(process, texts)
    os.kill(os.getpid(), signal.SIGKILL)
encoders._ask = ask_and_die
prepare_corpus(TextFiles(sys.argv[1]), tokenizer=BPETokenizer(vocab_size=300),
               directory=sys.argv[2], num_workers=1, show_progress=False)
"""


@pytest.mark.xdist_group("prepare")
def test_processes_do_not_outlive_the_one_that_started_them(
    modules: list[str], tmp_path: Path
) -> None:
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
