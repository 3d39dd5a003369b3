"""Mixtures: exact shares of tokens, the same order for any number of ranks, at any step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fidgpt import data

MakeStream = Callable[..., data.TokenStream]


@pytest.fixture
def streams(stream_of: MakeStream, modules: list[str]) -> dict[str, data.IndexedStream]:
    """Three texts of one letter each, of different sizes, so that rows show their text."""
    return {
        letter: stream_of([letter * (100 * (n + 1))] * (n + 1), seed=n, batch_size=1)
        for n, letter in enumerate("xyz")
    }


def mixed(streams: dict[str, data.IndexedStream], **options: Any) -> data.Mixture:
    options = {"batch_size": 8, "weights": {"x": 0.5, "y": 0.3, "z": 0.2}} | options
    mixture = data.Mixture(streams, **options)
    mixture.prepare(show_progress=False)
    return mixture


def letters(mixture: data.Mixture, steps: range) -> list[str]:
    """Which text each sequence is of."""
    rows = [row for step in steps for row in mixture.batch(step).tokens.tolist()]
    return [next(chr(token) for token in row if token < 256) for row in rows]


@pytest.mark.slow
def test_every_prefix_has_the_shares_less_than_one_sequence_off(streams):
    drawn = letters(mixed(streams), range(40))
    for name, share in {"x": 0.5, "y": 0.3, "z": 0.2}.items():
        had = np.cumsum([letter == name for letter in drawn])
        assert np.abs(had - share * np.arange(1, len(drawn) + 1)).max() < 1 - 1e-9


@pytest.mark.slow
def test_each_stream_continues_in_its_own_order(streams: dict[str, data.IndexedStream]) -> None:
    """Epoch after epoch, also where a stage ends in between."""
    stages = [data.Stage(begin=7, weights={"x": 1, "z": 2}), data.Stage(begin=20, weights={"y": 1})]
    mixture = mixed(streams, stages=stages)
    drawn: dict[str, list[list[int]]] = {name: [] for name in streams}
    for step in range(30):
        for row in mixture.batch(step).tokens.tolist():
            drawn[next(chr(token) for token in row if token < 256)].append(row)
    for name, stream in streams.items():
        assert drawn[name] == stream.rows(np.arange(len(drawn[name]))).tokens.tolist()
    assert len(drawn["x"]) > 2 * streams["x"].num_sequences  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_stage_has_its_own_shares_from_its_first_step_on(streams):
    mixture = mixed(streams, stages=[data.Stage(begin=10, weights={"z": 3, "x": 1})])
    drawn = letters(mixture, range(10, 30))
    assert (drawn.count("z"), drawn.count("x")) == (120, 40)
    assert letters(mixture, range(10)).count("x") == 40
    assert [float(mixture.shares(step)["z"]) for step in (0, 9, 10)] == [0.2, 0.2, 0.75]


def test_the_order_of_names_changes_nothing(streams: dict[str, data.IndexedStream]) -> None:
    """A config that was saved and loaded may name them in another order."""
    other = dict(reversed(streams.items()))
    weights = {"z": 0.2, "x": 0.5, "y": 0.3}
    first, second = mixed(streams), mixed(other, weights=weights)
    assert first.batch(5).tokens.equal(second.batch(5).tokens)
    assert first.checksum == second.checksum


@pytest.mark.slow
def test_mixtures_are_mixed(streams: dict[str, data.IndexedStream]) -> None:
    inner = data.Mixture(
        {name: streams[name] for name in "xy"}, batch_size=1, weights={"x": 1, "y": 1}
    )
    outer = mixed({"inner": inner, "z": streams["z"]}, weights={"inner": 0.8, "z": 0.2})
    drawn = letters(outer, range(25))
    assert [drawn.count(letter) for letter in "xyz"] == [80, 80, 40]


def test_the_checksum_is_that_of_the_texts(streams, stream_of):
    assert mixed(streams).checksum == mixed(streams, weights={"x": 1}).checksum
    other = {**streams, "z": stream_of(["zz" * 100])}
    assert mixed(streams).checksum != mixed(other).checksum


def test_different_tokenizers_are_refused(stream_of: MakeStream, modules: list[str]) -> None:
    own = stream_of(modules[:10], tokenizer=data.BPETokenizer(vocab_size=400))
    other = stream_of(modules[10:20], tokenizer=data.BPETokenizer(vocab_size=400))
    weights = {"own": 1.0, "other": 1.0}
    with pytest.raises(data.DataError, match=r"different tokenizers(.|\n)*CorpusTokenizer"):
        mixed({"own": own, "other": other}, weights=weights)
    assert isinstance(own, data.TokenStream)
    same = stream_of(modules[10:20], tokenizer=data.CorpusTokenizer(own.corpus))  # type: ignore[arg-type]
    mixture = mixed({"own": own, "other": same}, weights=weights)
    assert mixture.tokenizer.token_values() == own.tokenizer.token_values()
    assert other.checksum != same.checksum


def test_a_missing_text_is_reported_before_another_one_is_prepared(stream_of, tmp_path):
    own, other = stream_of(["a" * 200], prepare=False), stream_of(["b" * 200], prepare=False)
    assert isinstance(other.corpus, data.Corpus)
    other.corpus.source = data.TextFiles(tmp_path / "none.txt")
    inner = data.Mixture({"other": other}, batch_size=8, weights={"other": 1})
    with pytest.raises(data.DataError, match=r"none\.txt does not exist"):
        mixed({"own": own, "inner": inner}, weights={"own": 1, "inner": 1})
    assert not (tmp_path / "cache").exists()


def test_mistakes_are_named(streams: dict[str, data.IndexedStream]) -> None:
    with pytest.raises(ValueError, match="'w' has a weight, but is none of x, y, z"):
        mixed(streams, weights={"x": 1, "w": 1})
    with pytest.raises(ValueError, match=r"begin at steps \[5, 5\]"):
        mixed(streams, stages=[data.Stage(begin=5, weights={"x": 1})] * 2)
