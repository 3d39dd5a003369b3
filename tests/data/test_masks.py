"""Loss masks, from spans in a file to the loss: here capital letters and digits count."""

import json
import random
import re
from pathlib import Path
from typing import Any

import fiddle as fdl
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import torch.nn.functional as F

from fidgpt import configs, data, fiddlers
from fidgpt.data.prepare import main
from fidgpt.model import materialize
from fidgpt.parallel import DataParallel
from fidgpt.runs.building import build_trainer

BYTES = data.ByteTokenizer(special_tokens=["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
END = BYTES.end_of_text
SEQ_LEN = 32


def row(text: str) -> dict[str, Any]:
    """A row whose capital letters count."""
    return {"text": text, "spans": [match.span() for match in re.finditer("[A-Z]+", text)]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """80 texts of letters with their spans, then 10 texts of digits, all of which count."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcABC", k=draw.randint(20, 30))) for _ in range(80)]
    numbers = [{"text": f"{number:030}"} for number in range(10)]
    path = tmp_path / "marked.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in [*map(row, texts), *numbers]))
    return path


def corpus_of(path: Path, **options: Any) -> data.Corpus:
    source = data.TextFiles(path, counted_field="spans")
    return data.Corpus(source, tokenizer=BYTES, cache_dir=path.parent / "cache", **options)


@pytest.mark.parametrize(
    ("packing", "fim", "shard_tokens"),
    [
        (data.concatenate, 0.0, 300),
        (data.shuffle_and_concatenate, 0.7, 300),
        (data.best_fit, 0.7, 300),
        (data.best_fit, 0.0, 10**6),
    ],
)
def test_each_token_keeps_its_mark_in_every_sequence(path, packing, fim, shard_tokens):
    stream = data.TokenStream(
        corpus_of(path, shard_tokens=shard_tokens),
        packing=packing,
        transforms=[data.FillInTheMiddle(rate=fim)] if fim else [],
        **{"seq_len": SEQ_LEN, "batch_size": 8, "seed": 1},
    )
    stream.prepare(show_progress=False)
    batch = data.Batch.cat([stream.batch(step) for step in range(30)])
    assert batch.counted is not None
    text = "".join(chr(token) if token < END else "|" for token in batch.tokens.flatten())
    counted = batch.counted.flatten().tolist()
    marks = {
        letter: {mark for at, mark in zip(text, counted, strict=True) if at == letter}
        for letter in "abcABC0"
    }
    assert marks == {letter: {letter not in "abc"} for letter in "abcABC0"}


def test_masks_are_beside_the_tokens_of_shards_that_need_them(path, modules, prepare):
    options: dict[str, Any] = {"shard_tokens": 300, "validation_fraction": 0.0}
    corpus = corpus_of(path, **options).prepare(show_progress=False)
    masks = [shard.mask_file for shard in corpus.train.shards]
    assert masks[0] == "train-00000.mask" and masks[-1] is None
    first = json.loads(path.read_text().splitlines()[0])["text"]
    read = corpus.train.read(np.array([0]), length=len(first) + 1)
    assert read.tokens[0].tolist() == [*first.encode(), END]
    # An end of text counts as the token before it.
    assert read.mask[0].tolist() == [letter.isupper() for letter in first + first[-1]]
    assert prepare(modules[:3]).train.read(np.array([0]), length=9).counted is None
    mask = corpus.directory / "train-00000.mask"
    mask.write_bytes(mask.read_bytes()[:-1] + b"\2")
    with pytest.raises(data.DataError, match=r"train-00000\.mask was altered"):
        data.PreparedCorpus(corpus.directory)


@pytest.mark.parametrize("spec", [BYTES, data.BPETokenizer(vocab_size=300)])
def test_a_token_counts_that_has_a_character_in_a_span(spec: Any) -> None:
    text = "é answer \N{SNOWMAN}!"
    tokenizer = spec.build([text * 9])
    tokens, counted, *_ = data.MarkedText(text, [(2, 5), (9, 10)]).encode(tokenizer)
    assert counted is not None
    ends = np.cumsum([len(tokenizer.token_values()[token]) for token in tokens])
    spans = {3, 4, 5, 10, 11, 12}  # in bytes
    expected = [bool({*range(a, b)} & spans) for a, b in zip([0, *ends], ends, strict=False)]
    assert counted.tolist() == expected and not all(expected)


@pytest.mark.parametrize("spans", [[[0, 9]], [[3, 1]]])
def test_spans_that_are_none_are_refused(tmp_path: Path, spans: Any) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "abcd", "spans": spans}))
    source = data.TextFiles(tmp_path / "a.jsonl", counted_field="spans")
    with pytest.raises(data.DataError, match=r"line 1 has .* in the field 'spans'.*from 0 to 4"):
        list(source.documents())


def test_tables_have_spans_too_and_the_command_reads_them(path: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    columns = {name: [row.get(name) for row in rows] for name in ("text", "spans")}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "marked.parquet")
    corpora = []
    for source in (path, tmp_path / "marked.parquet"):
        out = tmp_path / f"out{source.suffix}"
        flags = ["--counted_field=spans", "--tokenizer=bytes", "--quiet"]
        assert main([f"--source={source}", f"--out={out}", *flags]) == 0
        corpora.append(data.PreparedCorpus(out))
    assert corpora[0].checksum == corpora[1].checksum
    assert corpora[0].train.shards[0].mask_file is not None
    assert main([f"--source={path}", f"--out={tmp_path / 'all'}", *flags[1:]]) == 0
    assert data.PreparedCorpus(tmp_path / "all").checksum != corpora[0].checksum


@pytest.mark.slow
def test_a_run_learns_and_measures_the_marked_tokens_alone(path: Path) -> None:
    """Over micro-batches with different numbers of them; compared with torch's own loss."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    cfg.data.corpus.source = fdl.Config(data.TextFiles, path, counted_field="spans")
    cfg.data.corpus.validation_fraction = 0.3
    cfg.seq_len, cfg.batch_size, cfg.micro_batch_size = SEQ_LEN, 4, 1
    trainer: Any = build_trainer(cfg)
    trainer.data.prepare(show_progress=False)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)

    def expected(batch: data.Batch) -> tuple[float, int]:
        targets = batch.targets.masked_fill(~batch.mask[:, 1:], -100)
        with torch.no_grad():
            logits = trainer.model(batch.inputs)
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return losses.item(), int((targets >= 0).sum())

    validation = trainer.evaluators["validation"]
    validation.prepare(show_progress=False)
    sums = [expected(validation.data.batch(n)) for n in range(validation.data.num_batches)]
    nats, count = map(sum, zip(*sums, strict=True))
    measured = validation(trainer.model, trainer.loss, DataParallel())
    assert measured["loss"] == pytest.approx(nats / count, rel=1e-5)
    batch = trainer.data.batch(0)
    nats, count = expected(batch)
    assert 0 < count < batch.targets.numel()
    loss = trainer.update(trainer.init_state(), batch)["loss"]
    assert loss == pytest.approx(nats / count, rel=1e-5)
