"""Preparation of corpora: results, resumption, failures."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from fidgpt.data import (
    BPETokenizer,
    ByteLevelTokenizer,
    ByteTokenizer,
    Corpus,
    DataError,
    PreparedCorpus,
    Source,
    Split,
    TextFiles,
    TokenizerFile,
    prepare_corpus,
)
from fidgpt.data.prepare import main
from fidgpt.data.shards import SplitWriter

MakeSource = Callable[..., Any]


def texts_of(corpus: PreparedCorpus, split: Split) -> list[str]:
    tokenizer = corpus.tokenizer
    found = [split.document(number).tolist() for number in range(split.num_documents)]
    assert all(tokens[-1] == tokenizer.end_of_text for tokens in found)
    return [tokenizer.decode(tokens[:-1]) for tokens in found]


@pytest.mark.parametrize("shard_tokens", [1, 2000, 10**9])
@pytest.mark.parametrize("spec", [BPETokenizer(vocab_size=400), ByteTokenizer()])
def test_every_document_is_found_again_in_order(
    modules: list[str],
    documents: MakeSource,
    tmp_path: Path,
    spec: BPETokenizer | ByteTokenizer,
    shard_tokens: int,
) -> None:
    corpus = prepare_corpus(
        documents(modules),
        tokenizer=spec,
        directory=tmp_path / "out",
        validation_fraction=0.2,
        shard_tokens=shard_tokens,
        show_progress=False,
    )
    train = texts_of(corpus, corpus.train)
    held_out = texts_of(corpus, corpus.validation)
    assert sorted(train + held_out) == sorted(modules)
    assert train == [text for text in modules if text in set(train)]
    assert held_out == [text for text in modules if text in set(held_out)]
    assert corpus.train.num_bytes == sum(len(text.encode()) for text in train)
    assert corpus.dtype == "uint16"
    num_shards = len(corpus.train.shards)
    assert num_shards == (corpus.train.num_documents if shard_tokens == 1 else num_shards)
    assert (num_shards == 1) == (shard_tokens == 10**9)


def test_a_vocabulary_beyond_16_bits_is_written_in_32(
    modules: list[str], documents: MakeSource, tmp_path: Path
) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {f"filler{n}": n for n in range(70_000)}
    vocabulary |= {letter: 70_000 + n for n, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(tmp_path / "big.json"))
    corpus = prepare_corpus(
        documents(modules[:5]),
        tokenizer=TokenizerFile(tmp_path / "big.json"),
        directory=tmp_path / "out",
        show_progress=False,
    )
    assert corpus.dtype == "uint32"
    both = texts_of(corpus, corpus.train) + texts_of(corpus, corpus.validation)
    assert sorted(both) == sorted(modules[:5])


def prepare_bytes(source: Source, directory: Path, *, fraction: float) -> PreparedCorpus:
    return prepare_corpus(
        source,
        tokenizer=ByteTokenizer(),
        directory=directory,
        validation_fraction=fraction,
        show_progress=False,
    )


def test_a_document_is_on_the_same_side_wherever_it_stands(
    documents: MakeSource, tmp_path: Path
) -> None:
    texts = [f"document {n}" for n in range(2000)]
    first = prepare_bytes(documents(texts), tmp_path / "a", fraction=0.1)
    held_out = set(texts_of(first, first.validation))
    # Binomial: 200 expected with a standard deviation of 13.4.
    assert 130 < len(held_out) < 270
    random.Random(0).shuffle(texts)
    second = prepare_bytes(documents(texts[:1500]), tmp_path / "b", fraction=0.1)
    assert set(texts_of(second, second.validation)) == held_out & set(texts[:1500])


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_two_different_documents_are_enough_for_both_sides(
    documents: MakeSource, tmp_path: Path, fraction: float
) -> None:
    corpus = prepare_bytes(documents(["one", "two"]), tmp_path / "out", fraction=fraction)
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (1, 1)


def test_no_document_is_on_both_sides(documents: MakeSource, tmp_path: Path) -> None:
    same = prepare_bytes(documents(["one", "one"]), tmp_path / "same", fraction=0.5)
    assert (same.train.num_documents, same.validation.num_documents) == (2, 0)
    whole = prepare_bytes(documents(["one", "two"]), tmp_path / "whole", fraction=0.0)
    assert (whole.train.num_documents, whole.validation.num_documents) == (2, 0)


def test_the_tokenizer_never_sees_what_is_held_out(documents: MakeSource, tmp_path: Path) -> None:
    texts = [f"{n} " + chr(0x4E00 + n) * 40 for n in range(50)]
    corpus = prepare_corpus(
        documents(texts),
        tokenizer=BPETokenizer(vocab_size=2000),
        directory=tmp_path / "out",
        validation_fraction=0.2,
        show_progress=False,
    )
    values = corpus.tokenizer.token_values()
    for split, seen in ((corpus.train, True), (corpus.validation, False)):
        for text in texts_of(corpus, split):
            assert (text[-1].encode() in values) == seen


def test_a_sample_bounds_what_the_tokenizer_learns_from(
    modules: list[str], documents: MakeSource, tmp_path: Path
) -> None:
    class Recording(BPETokenizer):
        def build(self, sample: Sequence[str]) -> ByteLevelTokenizer:
            self.sample = list(sample)
            return super().build(sample)

    samples = []
    for name, order in (("a", modules), ("b", modules[::-1])):
        spec = Recording(vocab_size=300, sample_bytes=40_000)
        prepare_corpus(
            documents(order), tokenizer=spec, directory=tmp_path / name, show_progress=False
        )
        samples.append(spec.sample)
    assert samples[0] == samples[1]
    assert 20_000 < sum(len(text.encode()) for text in samples[0]) <= 40_000


def test_the_command_prepares_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"body": f"text number {n}\n"}) + "\n" for n in range(30))
    )
    arguments = ["--source", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--text_field", "body", "--tokenizer", "bytes"]) == 0
    shown = capsys.readouterr()
    assert "Tokenizing" in shown.err
    assert str(tmp_path / "out") in shown.out
    assert "257 tokens in the vocabulary" in shown.out
    corpus = PreparedCorpus(tmp_path / "out")
    assert corpus.train.num_documents + corpus.validation.num_documents == 30
    assert main([*arguments, "--text_field", "body", "--vocab_size", "300"]) == 2
    assert "prepared from another source, tokenizer" in capsys.readouterr().err


def test_the_command_as_a_user_types_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    command = [sys.executable, "-W", "error", "-m", "fidgpt.data.prepare"]
    run = subprocess.run(
        [*command, "--source", "a.txt", "--tokenizer", "bytes", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "FIDGPT_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(os.listdir(tmp_path / "cache" / "corpora")) == 1
    assert np.fromfile(next(tmp_path.rglob("train-00000.bin")), dtype="<u2")[-1] == 256


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


def below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"caf\xe9 au lait\n" * 100, "is not UTF-8 text"),
        (b"fine\n" * 60_000 + b"\xff", "is not UTF-8 text"),
        (b"\xef\xbb\xbf", "holds no text at all"),
    ],
)
def test_bad_text_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "out").mkdir()
    assert main(["--source", str(path), "--out", str(tmp_path / "out" / "corpus")]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert below(tmp_path / "out") == []


def test_a_second_source_is_refused_rather_than_the_first_forgotten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--source", "a", "--source", "b"])
    assert ended.value.code == 2
    assert "argument --source: takes one value, but was given a and b" in capsys.readouterr().err


def test_a_bad_tokenizer_leaves_nothing(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for path, message in [("none.json", "No such file"), ("tokenizer.json", "no 'model'")]:
        with pytest.raises(DataError, match=message):
            prepare_corpus(
                documents(modules),
                tokenizer=TokenizerFile(tmp_path / path),
                directory=tmp_path / "cache" / "out",
                show_progress=False,
            )
    assert below(tmp_path) == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, ""),
            r"the disk is full\.\nFree some space there, or choose another",
        ),
        (OSError(errno.EIO, os.strerror(errno.EIO)), r"Input/output error\.\nMake it writable, or"),
        (KeyboardInterrupt(), "^$"),
    ],
)
def test_a_failure_before_the_first_shard_is_finished_leaves_nothing(
    documents: MakeSource,
    modules: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    message: str,
) -> None:
    add = SplitWriter.add
    count = iter(range(1000))

    def fail(writer: SplitWriter, tokens: Any, *, num_bytes: int) -> bool:
        if next(count) == 20:
            raise error
        return add(writer, tokens, num_bytes=num_bytes)

    monkeypatch.setattr(SplitWriter, "add", fail)
    corpus = Corpus(documents(modules), tokenizer=ByteTokenizer(), cache_dir=tmp_path)
    with pytest.raises((DataError, KeyboardInterrupt), match=message) as caught:
        corpus.prepare(show_progress=False)
    assert message == "^$" or str(tmp_path) in str(caught.value)
    assert below(tmp_path) == ["corpora"]
    monkeypatch.undo()
    assert corpus.prepare(show_progress=False).train.num_documents > 40


@pytest.mark.parametrize("place", ["file/cache", "/proc/fidgpt/cache"])
def test_a_place_that_cannot_be_written(
    documents: MakeSource, modules: list[str], tmp_path: Path, place: str
) -> None:
    """Below a regular file, and in the kernel's own tree: closed even to root."""
    (tmp_path / "file").write_text("not a directory")
    corpus = Corpus(documents(modules), tokenizer=ByteTokenizer(), cache_dir=tmp_path / place)
    with pytest.raises(DataError, match=r"Cannot write the prepared corpus(.|\n)*FIDGPT_CACHE"):
        corpus.prepare(show_progress=False)
    assert below(tmp_path) == ["file"]


def test_a_directory_with_other_things_in_it_is_left_alone(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious too")
    before = below(tmp_path)
    for name in ("mine", "file"):
        with pytest.raises(DataError, match="exists and is not a prepared corpus"):
            prepare_corpus(
                documents(modules),
                tokenizer=ByteTokenizer(),
                directory=tmp_path / name,
                show_progress=False,
            )
    assert below(tmp_path) == before


def test_text_that_grows_while_it_is_read(modules: list[str], tmp_path: Path) -> None:
    class Growing:
        def __init__(self) -> None:
            self.texts = list(modules)

        def documents(self) -> Iterator[str]:
            self.texts.append("more")
            yield from self.texts

        def identity(self) -> str:
            return "growing"

    corpus = Corpus(Growing(), tokenizer=ByteTokenizer(), cache_dir=tmp_path)
    with pytest.raises(DataError, match="text changed while it was read"):
        corpus.prepare(show_progress=False)
    assert below(tmp_path) == ["corpora"]


def test_options_out_of_range(documents: MakeSource, tmp_path: Path) -> None:
    for options, message in [
        ({"validation_fraction": 1.1}, "validation_fraction=1.1 must be from 0 to 1"),
        ({"validation_fraction": -0.1}, "validation_fraction=-0.1"),
        ({"shard_tokens": 0}, "shard_tokens=0 must be at least 1"),
        ({"num_workers": 0}, "num_workers=0 must be at least 1"),
    ]:
        source = documents(["a", "b"])
        with pytest.raises(DataError, match=message):
            Corpus(source, tokenizer=ByteTokenizer(), cache_dir=tmp_path, **options)
    assert below(tmp_path) == []


def test_constructing_reads_and_writes_nothing(tmp_path: Path) -> None:
    Corpus(
        TextFiles(tmp_path / "none.txt"),
        tokenizer=TokenizerFile(tmp_path / "none.json"),
        cache_dir=tmp_path / "cache",
    )
    BPETokenizer(vocab_size=1000)
    assert below(tmp_path) == []


@pytest.fixture
def directory(prepared: PreparedCorpus) -> Path:
    return prepared.directory


def test_the_command_that_deletes_it_fits_a_shell(tmp_path: Path) -> None:
    (tmp_path / "night owl").mkdir()
    (tmp_path / "night owl" / "index.json").touch()
    with pytest.raises(DataError) as caught:
        PreparedCorpus(tmp_path / "night owl")
    assert f"rm -r '{tmp_path}/night owl'" in str(caught.value)


def refused(directory: Path, *, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        PreparedCorpus(directory)
    assert f"rm -r {directory}" in str(caught.value)


FILES = ["train-00001.bin", "train-00000.ends", "validation-00000.bin", "tokenizer.json"]


@pytest.mark.parametrize("name", FILES)
def test_one_altered_byte_is_found(directory: Path, name: str) -> None:
    content = bytearray((directory / name).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / name).write_bytes(content)
    refused(directory, match=f"{name} was altered")


@pytest.mark.parametrize("name", FILES[:3])
def test_a_file_cut_short_or_missing_is_found(directory: Path, name: str) -> None:
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[:-2])
    refused(directory, match=f"{name} has {len(content) - 2} bytes, but the index has")
    (directory / name).unlink()
    refused(directory, match=f"{name} is missing")


def test_a_missing_tokenizer_is_found(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    refused(directory, match="tokenizer.json cannot be read")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "version None"), ('{"version": 1}', "missing or wrong entry")],
)
def test_an_index_that_makes_no_sense(directory: Path, content: str, message: str) -> None:
    (directory / "index.json").write_text(content)
    refused(directory, match=message)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["tokenizer_files"], None),
        (["tokenizer_files"], [1]),
        (["splits", "train", "tokens"], 10**9),
        (["splits", "train", "tokens"], "many"),
        (["splits", "train", "shards"], []),
        (["splits", "train", "shards", 0, "sha256"], None),
    ],
)
def test_an_index_with_one_wrong_entry(directory: Path, place: list[Any], value: Any) -> None:
    index = entry = json.loads((directory / "index.json").read_text())
    for key in place[:-1]:
        entry = entry[key]
    entry[place[-1]] = value
    (directory / "index.json").write_text(json.dumps(index))
    refused(directory, match="missing or wrong entry")


def test_a_later_format_is_not_guessed_at(directory: Path) -> None:
    index = json.loads((directory / "index.json").read_text())
    (directory / "index.json").write_text(json.dumps({**index, "version": 2}))
    refused(directory, match="version 2, not 1")


def test_a_large_corpus_is_verified_when_asked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fidgpt.data.prepared.VERIFIED_BELOW_BYTES", 0)
    PreparedCorpus(directory).verify()
    content = bytearray((directory / "train-00000.bin").read_bytes())
    content[0] ^= 1
    (directory / "train-00000.bin").write_bytes(content)
    corpus = PreparedCorpus(directory)
    with pytest.raises(DataError, match=r"train-00000.bin was altered"):
        corpus.verify()
