"""Documents in a new order in each epoch, against the same thing done with lists."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from fidgpt.data import DataError, TokenStream, shuffle_and_concatenate

MakeStream = Callable[..., TokenStream]
END = 256


@pytest.fixture
def texts() -> list[str]:
    """Each begins with a word of its own; some are longer than several sequences."""
    return [f"{n:03}" + "abcdefg " * (n * 7 % 23) for n in range(60)]


def epoch_of(stream: TokenStream, epoch: int) -> list[int]:
    """All tokens of an epoch that windows hold, in the order of the windows in the text."""
    packed = shuffle_and_concatenate(
        stream.corpus.prepare(), seq_len=stream.seq_len, seed=stream.seed
    )
    rows = packed.read(np.arange(packed.num_sequences), epoch=epoch).tolist()
    assert all(row[-1] == following[0] for row, following in itertools.pairwise(rows))
    return [token for row in rows for token in row[:-1]] + rows[-1][-1:]


def test_an_epoch_is_all_documents_in_an_order_of_its_own(
    stream_of: MakeStream, texts: list[str]
) -> None:
    stream = stream_of(texts, packing=shuffle_and_concatenate)
    orders = []
    for epoch in range(3):
        tokens = epoch_of(stream, epoch)
        whole = [bytes(part).decode() for part in split_at_ends(tokens)]
        orders.append(whole)
        left_out = len("".join(texts)) + len(texts) - len(tokens)
        assert 0 <= left_out < stream.seq_len
        assert {*whole[:-1]} <= {*texts}
        assert len(whole) > 55
        assert len({*whole}) == len(whole)
    assert orders[0] != orders[1] != orders[2]


def split_at_ends(tokens: list[int]) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == END:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if parts[-1] else parts[:-1]


def test_the_seed_and_the_packing_are_part_of_what_is_read(
    stream_of: MakeStream, texts: list[str]
) -> None:
    stream = stream_of(texts, packing=shuffle_and_concatenate)
    assert epoch_of(stream, 0) != epoch_of(
        stream_of(texts, packing=shuffle_and_concatenate, seed=2), 0
    )
    assert stream.checksum != stream_of(texts).checksum
    assert stream.num_sequences == stream_of(texts).num_sequences


def test_a_text_shorter_than_a_sequence_is_refused(stream_of: MakeStream) -> None:
    with pytest.raises(DataError, match="shorter than one sequence"):
        stream_of(["short"], packing=shuffle_and_concatenate)
