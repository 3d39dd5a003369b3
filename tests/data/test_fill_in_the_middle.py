"""Fill-in-the-middle: what is moved can be moved back, and the rates are those requested."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fidgpt.data import BPETokenizer, ByteTokenizer, DataError, FillInTheMiddle, TokenStream
from fidgpt.data import load_tokenizer as load

MakeStream = Callable[..., TokenStream]
NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TOKENIZER = ByteTokenizer(special_tokens=NAMES)
END, PREFIX, SUFFIX, MIDDLE = range(256, 260)


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
        assert row[-1] == END
        assert text == a_row()[:-4]
        assert form == "suffix first" or spm_rate == 0.0


def test_texts_of_a_row_are_changed_each_on_its_own_and_keep_their_places() -> None:
    row = [*a_row(length=30), END, *a_row(length=15), END, *a_row(length=40), END]
    for new in changed([row] * 50, rate=1.0).tolist():
        assert [n for n, token in enumerate(new) if token == END] == [30, 46, 87]
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
    row = [END, ~97, *a_row(length=40), END, ~END, ~END, ~END]
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
