"""Preferences: rows of a question with a chosen and a rejected answer, and pairs of sequences."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.batches import Batch
from fidgpt.data.chat_templates import Message
from fidgpt.data.conversations import Conversation, Conversations
from fidgpt.data.documents import EncodedDocument
from fidgpt.data.errors import DataError
from fidgpt.data.messages import (
    LISTS,
    QUESTIONS,
    messages_in,
    naming_place,
    require_order,
    tools_of,
)
from fidgpt.data.packing import Sequences
from fidgpt.data.prepared import PreparedCorpus
from fidgpt.data.tokenizers import Tokenizer

__all__ = ["PreferencePair", "Preferences", "pairs"]

_SIDES = ("chosen", "rejected")
_COLUMNS = {"response_j": "chosen", "response_k": "rejected"}  # of StackExchange's pairs


class Preferences(Conversations):
    """Rows with a chosen and a rejected answer to one conversation; only the answers count.

    `chosen` and `rejected` are texts or lists of messages, behind a `prompt` that is either, or
    behind `messages` or `conversations`. Lists without a prompt hold the whole conversation, and
    differ in their last answer.

    Args:
      max_tokens: of each side, with the end of text behind it; None for any number.
      too_long: as in `Conversations`; a pair is dropped with one of its sides.
    """

    example = '{"prompt": "...", "chosen": "...", "rejected": "..."}'

    def __init__(self, *, max_tokens: int | None = None, too_long: str = "shorten") -> None:
        super().__init__(max_tokens=max_tokens, train_on="last", too_long=too_long)  # pyright: ignore[reportArgumentType]

    def identity(self) -> str:
        return f"preferences {super().identity()}"

    def document(self, row: Any, /, *, place: str) -> "PreferencePair":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the pair of a row.

        Raises:
          DataError: it holds none, its answers are the same, or roles are out of order.
        """
        with naming_place(place):
            row = row if isinstance(row, Mapping) else {}
            row = {_COLUMNS.get(name, name): value for name, value in row.items()}
            if not all(row.get(side) for side in _SIDES):
                raise DataError(
                    f"holds no pair, but the fields {', '.join(map(str, row)) or 'none'}: it needs "
                    "a chosen and a rejected answer"
                )
            before = _before(row)
            chosen, rejected = ([*before, *messages_in(row[s], role="assistant")] for s in _SIDES)
            for messages in (chosen, rejected):
                require_order(messages)
            if chosen == rejected:
                raise DataError("has the same answer as chosen and as rejected: leave it out")
            tools = tools_of(row)
            sides = [
                Conversation(messages=messages, options=self, place=place, tools=tools)
                for messages in (chosen, rejected)
            ]
            return PreferencePair(*sides)


def _before(row: Mapping[str, Any]) -> Sequence[Message]:
    """Return the messages before both answers."""
    name = next((name for name in (*QUESTIONS, *LISTS) if row.get(name)), None)
    return [] if name is None else messages_in(row[name], role="user")


@dataclass(frozen=True, eq=False)
class PreferencePair:
    """A pair as a document: the chosen conversation, an end of text, and the rejected one."""

    chosen: Conversation
    rejected: Conversation

    @property
    def text(self) -> str:
        return f"{self.chosen.text}\n{self.rejected.text}"

    def encode(self, tokenizer: Tokenizer) -> EncodedDocument:
        """Return the tokens of both conversations; the tokens of the last answers count."""
        chosen, rejected = self.chosen.encode(tokenizer), self.rejected.encode(tokenizer)
        event = next((side.event for side in (chosen, rejected) if side.is_dropped), "")
        if event:
            return EncodedDocument(chosen.tokens[:0], event=event)
        end = np.array([tokenizer.end_of_text], dtype=np.uint32)
        tokens = np.concatenate([chosen.tokens, end, rejected.tokens])
        assert chosen.counted is not None and rejected.counted is not None
        counted = np.concatenate([chosen.counted, [bool(chosen.counts_end)], rejected.counted])
        return EncodedDocument(tokens, counted, rejected.counts_end, chosen.event or rejected.event)


def pairs(corpus: PreparedCorpus, *, seq_len: int, seed: int) -> Sequences:
    """Make a row of each pair of a corpus of `Preferences`: its chosen side, then its rejected one.

    Each side has `seq_len` + 1 tokens, padded with ends of text, which do not count. It begins with
    one where the tokenizer puts the end of text in front of documents.

    Raises:
      DataError: there are no pairs.
    """
    if not corpus.train.num_documents:
        left_out = "; ".join(f"{n:,} {event}" for event, n in corpus.train.events.items())
        raise DataError(f"No pairs are left to train on ({left_out or 'the file has none'}).")
    return _Pairs(corpus, seq_len=seq_len)


class _Pairs:
    """The pairs of a corpus, the same ones in every epoch."""

    def __init__(self, corpus: PreparedCorpus, *, seq_len: int) -> None:
        self._split, self._window = corpus.train, seq_len + 1
        self._bounds = corpus.train.bounds()
        self._tokenizer = corpus.tokenizer
        self.num_sequences = corpus.train.num_documents
        self.checksum = hashlib.sha256(f"pairs {corpus.checksum}".encode()).hexdigest()

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> Batch:
        end, window = self._tokenizer.end_of_text, self._window
        first = int(self._tokenizer.begin_of_text == end)
        tokens = np.full((len(numbers), 2, window), end, dtype=np.int64)
        counted, real = np.zeros(tokens.shape, np.bool_), np.zeros(tokens.shape, np.bool_)
        for row, number in enumerate(numbers.tolist()):
            begin, stop = self._bounds[number : number + 2].tolist()
            pair = self._split.read(np.array([begin]), length=stop - begin)
            ends = np.flatnonzero(pair.tokens.numpy()[0] == end)
            for side, (a, b) in enumerate(itertools.pairwise([0, *(ends + 1).tolist()])):
                place = row, side, slice(first, first + b - a)
                tokens[place] = pair.tokens.numpy()[0, a:b]
                counted[place] = pair.mask.numpy()[0, a:b]
                real[row, side, : first + b - a - 1] = True  # not the end, which nothing follows
        shape = len(numbers), 2 * window
        return Batch.of(tokens.reshape(shape), counted.reshape(shape), real.reshape(shape))
