"""Packing: document order, best fit, masks and loss masks."""

import bz2
import gzip
import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt.data import (
    BPETokenizer,
    ByteTokenizer,
    DataError,
    FillInTheMiddle,
    TextFiles,
    TokenStream,
    best_fit,
    inputs_and_targets,
    mask_loss,
    token_ids,
)
from fidgpt.data import load_tokenizer as load
from fidgpt.data.packing import pack
from fidgpt.model.context import PackedDocuments
from fidgpt.model.transformer import LanguageModel
from fidgpt.train.loss import CrossEntropy, NextToken

MakeStream = Callable[..., TokenStream]
END = 256
SEQ_LEN = 32


def plain_best_fit(lengths: Iterable[int], *, capacity: int) -> list[int]:
    """How full each bin is, by looking at every bin for every piece."""
    filled: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [n for n, full in enumerate(filled) if full + length <= capacity]
        if fitting:
            filled[max(fitting, key=lambda n: filled[n])] += length
        else:
            filled.append(length)
    return sorted(filled)


@pytest.mark.parametrize("capacity", [1, 2, 5, 16, 33, 64])
@pytest.mark.parametrize("count", [0, 1, 5, 40, 200])
def test_bins_are_as_full_as_by_the_plain_algorithm(capacity: int, count: int) -> None:
    lengths = np.random.default_rng(count).integers(1, capacity + 1, count)
    counts = np.bincount(lengths, minlength=capacity + 1)
    groups = pack(counts)
    contents = [
        [length for length, times in zip(g.lengths, g.times, strict=True) for _ in range(times)]
        for g in groups
        for _ in range(g.num_bins)
    ]
    assert sorted(map(sum, contents)) == plain_best_fit(lengths.tolist(), capacity=capacity)
    assert sorted(n for bin in contents for n in bin) == sorted(lengths.tolist())


def test_a_billion_pieces_are_packed_as_fast_as_a_few() -> None:
    lengths = np.arange(2049)
    groups = pack((1e9 * np.exp(-lengths / 300) * (lengths > 0)).astype(np.int64))
    used = sum(g.num_bins for g in groups) * 2048
    held = sum(g.num_bins * n * t for g in groups for n, t in zip(g.lengths, g.times, strict=True))
    assert len(groups) < 10_000
    assert 0 <= 1 - held / used < 1e-3


def random_texts(count: int, *, longest: int, seed: int = 0) -> list[str]:
    """Texts that differ in their first five characters."""
    draw = random.Random(seed)
    return [
        (f"{n:05}" + "".join(draw.choices("abcdefghij", k=longest)))[: draw.randint(5, longest)]
        for n in range(count)
    ]


def rows_of_epoch(stream: TokenStream, epoch: int) -> list[list[int]]:
    first = epoch * stream.num_sequences
    return stream.rows(np.arange(first, first + stream.num_sequences)).tolist()


def documents_of(rows: Iterable[list[int]]) -> list[str]:
    """The texts between ends of text, where every one that is learned is one that ends a text."""
    found = []
    for row in rows:
        assert row[0] == END
        text: list[int] = []
        for token in row[1:]:
            if token == END:
                found.append(bytes(text).decode())
                text = []
            elif token >= 0:
                text.append(token)
        assert not text
    return found


def test_documents_that_fit_are_whole_and_each_comes_once_an_epoch(stream_of: MakeStream) -> None:
    texts = random_texts(300, longest=SEQ_LEN - 1)
    stream = stream_of(texts, packing=best_fit)
    for epoch in range(3):
        assert sorted(documents_of(rows_of_epoch(stream, epoch))) == sorted(texts)


def test_an_epoch_is_as_full_as_best_fit_makes_it(stream_of: MakeStream) -> None:
    texts = random_texts(300, longest=SEQ_LEN - 1)
    stream = stream_of(texts, packing=best_fit)
    filled = [sum(token >= 0 for token in row) - 1 for row in rows_of_epoch(stream, 1)]
    lengths = [len(text) + 1 for text in texts]
    assert sorted(filled) == plain_best_fit(lengths, capacity=SEQ_LEN)


def test_what_stays_empty_is_read_as_ends_of_text_and_not_learned(stream_of: MakeStream) -> None:
    stream = stream_of(["abcde", "fghij"], packing=best_fit, seq_len=20)
    (row,) = rows_of_epoch(stream, 0)
    assert row[13:] == [~END] * 8
    assert token_ids(np.array(row))[12:].tolist() == [END] * 9
    assert min(row[:13]) >= 0


def test_a_longer_document_is_cut_and_its_rest_packed(stream_of: MakeStream) -> None:
    """Every token comes once; those that a piece after the first begins with are not learned.

    Of a document that fills its pieces but for the end of text, that end is left out.
    """
    texts = [text for text in random_texts(60, longest=100) if len(text) % SEQ_LEN]
    texts.append("f" * SEQ_LEN)
    stream = stream_of(texts, packing=best_fit)
    corpus = stream.corpus.prepare().train
    tokens = [t for n in range(corpus.num_documents) for t in corpus.document(n).tolist()]
    rows = rows_of_epoch(stream, 0)
    read = [~t if t < 0 else t for row in rows for t in row[1:] if t != ~END]
    assert sorted([*read, END]) == sorted(tokens)
    masked = sum(t < 0 and t != ~END for row in rows for t in row)
    assert masked == sum(len(text) // SEQ_LEN for text in texts) - 1 > 50


def test_the_model_sees_each_document_alone_and_from_its_beginning(stream_of: MakeStream) -> None:
    texts = random_texts(50, longest=12)
    stream = stream_of(texts, packing=best_fit)
    rows = torch.tensor(rows_of_epoch(stream, 0))
    inputs = token_ids(rows)[:, :-1]
    places = PackedDocuments(end_of_text=END)(inputs)
    assert places.documents is not None
    seen = [
        bytes(row[chosen][1:].tolist()).decode()
        for row, documents in zip(inputs, places.documents, strict=True)
        for number in documents.unique().tolist()
        if (chosen := documents == number).sum() > 1
    ]
    assert sorted(seen) == sorted(texts)
    assert (places.positions[inputs == END] == 0).all()


def test_each_epoch_permutes_the_documents(stream_of: MakeStream) -> None:
    stream = stream_of(random_texts(300, longest=12), packing=best_fit)
    first, second = (
        {frozenset(documents_of([row])) for row in rows_of_epoch(stream, epoch)}
        for epoch in range(2)
    )
    assert len(first & second) < len(first) / 10
    order = [documents_of([row]) for row in rows_of_epoch(stream, 0)]
    assert any(list(map(len, row)) != sorted(map(len, row), reverse=True) for row in order)


def test_the_seed_decides_and_another_process_reads_the_same(stream_of: MakeStream) -> None:
    texts = random_texts(100, longest=20)
    first = stream_of(texts, packing=best_fit)
    assert torch.equal(first.batch(50), stream_of(texts, packing=best_fit).batch(50))
    assert not torch.equal(first.batch(50), stream_of(texts, packing=best_fit, seed=2).batch(50))


def test_the_packing_is_written_once_for_each_length(stream_of: MakeStream, tmp_path: Path) -> None:
    texts = random_texts(100, longest=20)
    checksums = {
        stream_of(texts, packing=best_fit).checksum,
        stream_of(texts, packing=best_fit, seq_len=40).checksum,
        stream_of(texts).checksum,
    }
    checksums.add(stream_of([text[::-1] for text in texts], packing=best_fit).checksum)
    assert len(checksums) == 4
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("pieces.bin")}
    assert stream_of(texts, packing=best_fit).checksum in checksums
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("pieces.bin")}


def test_pieces_are_the_same_whatever_is_read_at_once(
    stream_of: MakeStream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with any number of shards and any size of what is held in memory."""
    texts = random_texts(100, longest=90)
    whole = stream_of(texts, packing=best_fit)
    monkeypatch.setattr("fidgpt.data.packing.PIECES_AT_ONCE", 7)

    def elsewhere(corpus: Any, *, seq_len: int, seed: int) -> Any:
        return best_fit(corpus, seq_len=seq_len, seed=seed, cache_dir=tmp_path / "other")

    parts = stream_of(texts, packing=elsewhere)
    assert list((tmp_path / "other").rglob("pieces.bin"))
    assert parts.checksum == whole.checksum
    assert torch.equal(parts.batch(3), whole.batch(3))


@pytest.mark.parametrize("harm", ["cut", "flip", "index", "missing", "foreign", "entry"])
def test_a_damaged_packing_is_found_and_named(stream_of: MakeStream, harm: str) -> None:
    texts = random_texts(100, longest=20)
    stream = stream_of(texts, packing=best_fit)
    directory = stream.corpus.prepare().directory / f"best-fit-{SEQ_LEN}"
    pieces, index = directory / "pieces.bin", directory / "index.json"
    content = json.loads(index.read_text())
    if harm == "cut":
        pieces.write_bytes(pieces.read_bytes()[:-8])
    elif harm == "flip":
        pieces.write_bytes(bytes([pieces.read_bytes()[0] ^ 2]) + pieces.read_bytes()[1:])
    elif harm == "index":
        index.write_text("{")
    elif harm == "missing":
        pieces.unlink()
    elif harm == "foreign":
        index.write_text(json.dumps({**content, "corpus": "0"}))
    else:
        index.write_text(json.dumps({"version": content["version"]}))
    with pytest.raises(DataError, match=r"The packing in (.|\n)*rm -r (.|\n)*from the corpus"):
        stream_of(texts, packing=best_fit)


def test_a_place_that_cannot_be_written_is_named(stream_of: MakeStream, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def here(corpus: Any, *, seq_len: int, seed: int) -> Any:
        return best_fit(corpus, seq_len=seq_len, seed=seed, cache_dir=tmp_path / "file")

    with pytest.raises(DataError, match=r"Cannot write the packing(.|\n)*cache_dir"):
        stream_of(["a text"], packing=here)


def by_pyarrow(kind: str) -> Callable[[bytes], bytes]:
    return lambda data: pyarrow.compress(data, codec=kind, asbytes=True)


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".lz4": by_pyarrow("lz4"),
    ".zst": by_pyarrow("zstd"),
}
TEXTS = [f"text {number} é\r\n " for number in range(5000)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("name", ["a.b.jsonl", "shard.00000-of-00512.json", "a.JSONL"])
def test_compressed_files_are_read_like_others(tmp_path: Path, suffix: str, name: str) -> None:
    pack = PACK[suffix]
    # Several packed pieces one after the other are one file.
    (tmp_path / f"{name}{suffix}").write_bytes(pack(LINES[:5000]) + pack(LINES[5000:]))
    assert list(TextFiles(tmp_path).documents()) == TEXTS
    (tmp_path / f"{name}{suffix}").unlink()
    (tmp_path / f"b.txt{suffix}").write_bytes(pack("\ufeffa\r\né".encode()))
    assert list(TextFiles(tmp_path).documents()) == ["a\r\né"]


@pytest.mark.parametrize("suffix", PACK)
def test_truncated_files_are_reported(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACK[suffix](LINES)[:-200])
    with pytest.raises(DataError, match=r"Cannot read .*a\.jsonl(.|\n)*complete"):
        list(TextFiles(path).documents())


@pytest.mark.parametrize("name", ["a.zip", "a.jsonl.xz", "a.tar.gz", "a.tgz"])
def test_unsupported_compression_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(DataError, match=r"is compressed(.|\n)*Unpack it first"):
        list(TextFiles(tmp_path).documents())


def test_unpacking_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(PACK[".zst"](LINES))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[parquet\]"'):
        list(TextFiles(tmp_path).documents())


@pytest.mark.parametrize(
    "content", ['{\n "text": "a"\n}\n', '{"name": "a"}\n{"text": "b"}\n', "[1]", "{", "\n"]
)
def test_json_that_is_no_text_a_line_is_plain_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert list(TextFiles(tmp_path).documents()) == [content]


def test_rows_of_json_without_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": null}\n\n{"text": ""}\n{"text": "a"}\r\n')
    assert list(TextFiles(tmp_path).documents()) == ["a"]


def test_linked_folders_are_read_once_and_loops_end(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (root / "b").mkdir(parents=True)
    (root / "b" / "b.txt").write_text("b")
    (elsewhere / "deep" / "c.txt").write_text("c")
    (root / "c").symlink_to(elsewhere)
    (root / "d").symlink_to(elsewhere)
    (root / "b" / "up").symlink_to(root)
    (elsewhere / "deep" / "back").symlink_to(root / "b")
    (root / "e.txt").symlink_to(elsewhere / "deep" / "c.txt")
    assert list(TextFiles(root).documents()) == ["b", "c", "c"]


class Bigram(LanguageModel):
    """A score for each pair of tokens."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(7, 5, generator=generator))
        self.unembedding = torch.nn.Linear(5, 7)
        with torch.no_grad():
            self.unembedding.weight.copy_(torch.randn(7, 5, generator=generator))

    def features(self, tokens: Tensor, ctx: object = None) -> Tensor:
        return self.table[tokens]


BATCH = torch.tensor([[1, 2, 3, 4, 0], [5, 6, 0, 0, 0]])
COUNTED = torch.tensor([[True, False, True, True], [True, True, False, False]])


def masked() -> Tensor:
    batch = BATCH.clone()
    batch[:, 1:] = torch.where(COUNTED, BATCH[:, 1:], mask_loss(BATCH[:, 1:]))
    return batch


def test_masked_tokens_are_still_inputs() -> None:
    assert torch.equal(token_ids(masked()), BATCH)
    assert torch.equal(mask_loss(mask_loss(BATCH)), BATCH)
    inputs, targets, mask = inputs_and_targets(masked())
    assert torch.equal(inputs, BATCH[:, :-1])
    assert torch.equal(targets, BATCH[:, 1:])
    assert mask is not None
    assert torch.equal(mask, COUNTED)


def test_without_masked_tokens_there_is_no_mask() -> None:
    assert inputs_and_targets(BATCH)[2] is None


def test_the_loss_and_its_gradient_are_those_of_the_other_tokens() -> None:
    model, reference = Bigram(), Bigram()
    reference.load_state_dict(model.state_dict())
    loss = NextToken(model, CrossEntropy(chunk_size=3))(masked())
    logits = reference(BATCH[:, :-1])
    targets = BATCH[:, 1:].where(COUNTED, torch.tensor(-100))
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_loss_of_a_fully_masked_batch_is_zero() -> None:
    model = Bigram()
    batch = BATCH.clone()
    batch[:, 1:] = mask_loss(BATCH[:, 1:])
    loss = NextToken(model, CrossEntropy())(batch)
    loss.backward()
    assert loss.item() == 0
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.table.grad is not None
    assert model.table.grad.abs().max() == pytest.approx(0)


NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TOKENIZER = ByteTokenizer(special_tokens=NAMES)
MIDDLE_END, PREFIX, SUFFIX, MIDDLE = range(256, 260)


def changed(rows: Any, *, seed: int = 0, first: int = 0, **options: Any) -> np.ndarray:
    """What the part makes of some rows."""
    rows = np.array(rows, dtype=np.int64)
    part = FillInTheMiddle(**options)
    indices = np.arange(first, first + len(rows))
    return part(rows, indices=indices, seed=seed, tokenizer=TOKENIZER)


def undone(text: list[int]) -> tuple[str, list[int]]:
    """The form of a text, and the text before it was changed."""
    if PREFIX not in text:
        return "as it was", text
    turn, fill = text.index(SUFFIX), text.index(MIDDLE)
    assert text[0] == PREFIX
    assert [text.count(token) for token in (PREFIX, SUFFIX, MIDDLE)] == [1, 1, 1]
    before, after, middle = text[1:turn], text[turn + 1 : fill], text[fill + 1 :]
    if turn == 1:
        return "suffix first", middle + after
    return "prefix first", before + middle + after


def a_row(*, length: int = 64) -> list[int]:
    return [n % 250 for n in range(length)]


@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
def test_the_text_can_be_put_together_again(spm_rate: float) -> None:
    """But for the tokens that made room; where the sequence cuts it off, an end of text follows."""
    rows = [a_row()] * 100
    for row in changed(rows, rate=1.0, spm_rate=spm_rate).tolist():
        form, text = undone(row[:-1])
        assert row[-1] == MIDDLE_END
        assert text == a_row()[:-4]
        assert form == "suffix first" or spm_rate == 0.0


def test_texts_of_a_row_are_changed_each_on_its_own_and_keep_their_places() -> None:
    row = [
        *a_row(length=30),
        MIDDLE_END,
        *a_row(length=15),
        MIDDLE_END,
        *a_row(length=40),
        MIDDLE_END,
    ]
    for new in changed([row] * 50, rate=1.0).tolist():
        assert [n for n, token in enumerate(new) if token == MIDDLE_END] == [30, 46, 87]
        assert undone(new[:30])[1] == a_row(length=27)
        assert new[31:46] == a_row(length=15)  # too short
        assert undone(new[47:87])[1] == a_row(length=37)


def test_chance_has_the_rates() -> None:
    """Of 4,000 texts, within 4 standard errors; cuts are anywhere, alike in both halves."""
    rows = changed([a_row()] * 4000, rate=0.3, spm_rate=0.25).tolist()
    forms = [undone(row[:-1])[0] if PREFIX in row else "as it was" for row in rows]
    assert abs(forms.count("as it was") / 4000 - 0.7) < 4 * (0.21 / 4000) ** 0.5
    changed_count = 4000 - forms.count("as it was")
    first = sum(row[:2] == [PREFIX, SUFFIX] for row in rows)
    # An empty prefix in the other form looks the same: of 60 tokens, one in about 30.
    expected = 0.25 + 0.75 / 31
    assert abs(first / changed_count - expected) < 4 * (0.25 * 0.75 / changed_count) ** 0.5
    cuts = [
        row.index(SUFFIX) - 1 for row in changed([a_row()] * 4000, rate=1.0, spm_rate=0.0).tolist()
    ]
    # The smaller of two numbers from 0 to 60 is 20 on average, with a deviation of 14.
    assert abs(np.mean(cuts) - 20) < 4 * 14.5 / 4000**0.5 + 0.5


def test_a_rate_of_zero_changes_nothing_and_tokens_that_are_not_learned_stay_so() -> None:
    assert (changed([a_row()] * 20, rate=0.0) == [a_row()] * 20).all()
    row = [MIDDLE_END, ~97, *a_row(length=40), MIDDLE_END, ~MIDDLE_END, ~MIDDLE_END, ~MIDDLE_END]
    for new in changed([row] * 20, rate=1.0).tolist():
        assert new[-4:] == row[-4:]
        assert new.count(~97) == 1


def test_what_is_drawn_depends_on_the_seed_and_the_number_of_the_row() -> None:
    rows = [a_row()] * 40
    assert (changed(rows)[10:] == changed(rows[10:], first=10)).all()
    assert (changed(rows) != changed(rows, seed=1)).any()
    assert (changed(rows) != changed(rows, first=40)).any()
    assert changed(rows, seed=5)[:3, :6].tolist() == changed(rows, seed=5)[:3, :6].tolist()


def test_a_stream_changes_its_sequences_alike_for_any_rank(
    stream_of: MakeStream, modules: list[str]
) -> None:
    part = FillInTheMiddle(rate=0.9)
    options = {"tokenizer": TOKENIZER, "seq_len": 128, "transforms": [part]}
    stream = stream_of(modules[:8], **options)
    before = stream_of(modules[:8], **{**options, "transforms": []})
    batch = stream.batch(3)
    assert (batch == MIDDLE).any()
    assert batch.shape == before.batch(3).shape
    ranked = [stream.batch(3, rank=rank, world_size=4) for rank in range(4)]
    assert torch.equal(torch.cat(ranked), batch)
    assert stream.checksum != before.checksum
    other = FillInTheMiddle(rate=0.8)
    assert stream_of(modules[:8], **{**options, "transforms": [other]}).checksum != stream.checksum


def test_tokens_are_found_by_name_or_taken_by_number(stream_of: MakeStream) -> None:
    texts = ["some text to train on, and some more of it " * 4] * 3
    bpe = BPETokenizer(vocab_size=300, special_tokens=NAMES)
    trained = stream_of(texts, tokenizer=bpe, transforms=[FillInTheMiddle(rate=1.0)])
    assert [trained.tokenizer.special_ids()[name] for name in NAMES] == [1, 2, 3]
    assert {1, 2, 3} <= set(trained.batch(0).flatten().tolist())
    numbers = FillInTheMiddle(rate=1.0, prefix=1, suffix=2, middle=3)
    assert torch.equal(
        stream_of(texts, tokenizer=bpe, transforms=[numbers]).batch(0), trained.batch(0)
    )
    with pytest.raises(DataError, match=r"no special token '<\|fim_prefix\|>'(.|\n)*BPETokenizer"):
        stream_of(texts, transforms=[FillInTheMiddle()])
    with pytest.raises(DataError, match="no special token 257"):
        stream_of(texts, transforms=[FillInTheMiddle(prefix=257)])


@pytest.mark.parametrize("make", [BPETokenizer, ByteTokenizer])
def test_special_tokens_are_kept_and_no_text_spells_them(make: Any, tmp_path: Any) -> None:
    sizes: dict[str, Any] = {"vocab_size": 300} if make is BPETokenizer else {}
    spec = make(special_tokens=NAMES, **sizes)
    assert spec.identity() != make(**sizes).identity()
    tokenizer = spec.build(["a small text, a small text"])
    ids = {tokenizer.special_ids()[name] for name in NAMES}
    assert not ids & {*tokenizer.encode("<|fim_prefix|> is text"), tokenizer.end_of_text}
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load(tmp_path / "tokenizer.json")
    assert loaded.special_ids() == tokenizer.special_ids()
    assert loaded.vocab_size == tokenizer.vocab_size == len(tokenizer.token_bytes())
    assert loaded.decode([*ids, *tokenizer.encode("é")]) == "é"


def test_numbers_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(DataError, match="rate=1.5 must be a probability"):
        FillInTheMiddle(rate=1.5)
    with pytest.raises(DataError, match="259 or more|260 or more"):
        BPETokenizer(vocab_size=258, special_tokens=NAMES)
