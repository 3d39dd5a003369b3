"""Batches of training tokens as a pure function of the step."""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.packing.packing import Packing, Sequences, concatenate
from fidgpt.data.packing.transforms import Transform
from fidgpt.data.preparing.prepared import PreparedCorpus
from fidgpt.data.streams.permutation import derive_key, permute
from fidgpt.data.streams.streams import IndexedStream
from fidgpt.data.streams.windows import CorpusPart, check_positive, require_prepared
from fidgpt.data.tokenizers.tokenizer import Tokenizer


class TokenStream(IndexedStream):
    """Endless batches of the training split: every sequence once an epoch, shuffled each time anew.

    The order is a keyed permutation of the sequence numbers, another one in every epoch: a batch
    costs the same at any step, and there is no state to save.

    Args:
      corpus: the text.
      seq_len: inputs of a sequence, which holds one token more.
      batch_size: sequences of a batch, over all ranks.
      seed: decides the order, and with it what packing and transforms draw.
      packing: makes sequences of documents.
      transforms: change sequences, one after the other.

    Raises:
      DataError: a size is below one.
    """

    def __init__(
        self,
        corpus: CorpusPart,
        *,
        seq_len: int,
        batch_size: int,
        seed: int,
        packing: Packing = concatenate,
        transforms: Sequence[Transform] = (),
    ) -> None:
        self.check_arguments(seq_len=seq_len, batch_size=batch_size)
        self.corpus = corpus
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self.packing = packing
        self.transforms = transforms
        self._prepared: PreparedCorpus | None = None
        self._sequences: Sequences | None = None

    @staticmethod
    def check_arguments(*, seq_len: int, batch_size: int) -> None:
        """Raises DataError where a count is below one."""
        check_positive(seq_len, name="seq_len")
        check_positive(batch_size, name="batch_size")

    def require_text(self) -> None:
        require_source = getattr(self.corpus, "require_source", None)
        if require_source is not None:
            require_source()

    def prepare(self, *, show_progress: bool = True) -> None:
        """Open the corpus and pack it, writing what is missing; again, it costs nothing.

        Raises DataError, also when the training split is shorter than one sequence.
        """
        if self._sequences is not None:
            return
        prepared = self.corpus.prepare(show_progress=show_progress)
        for transform in self.transforms:
            transform.check(prepared.tokenizer)
        self._sequences = self.packing(prepared, seq_len=self.seq_len, seed=self.seed)
        self._prepared = prepared

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequences with these numbers, counted on from epoch to epoch."""
        sequences, tokenizer = self._packed, self.tokenizer
        rows = np.empty((len(indices), self.seq_len + 1), dtype=np.int64)
        epochs, places = np.divmod(indices, sequences.num_sequences)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            key = derive_key(self.seed, "data", epoch)
            numbers = permute(
                places[chosen].astype(np.uint64), size=sequences.num_sequences, key=key
            )
            rows[chosen] = sequences.read(numbers.astype(np.int64), epoch=epoch)
        for transform in self.transforms:
            rows = transform(rows, indices=indices, seed=self.seed, tokenizer=tokenizer)
        return rows

    @property
    def _packed(self) -> Sequences:
        require_prepared(self._prepared)
        assert self._sequences is not None
        return self._sequences

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the training split."""
        return require_prepared(self._prepared).train.num_tokens

    @property
    def num_sequences(self) -> int:
        """The number of sequences in an epoch."""
        return self._packed.num_sequences

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the corpus was prepared with."""
        return require_prepared(self._prepared).tokenizer

    @property
    def checksum(self) -> str:
        """A hash of the prepared corpus, and of what packs and changes it, in 64 hex digits."""
        words = [self._packed.checksum, *(transform.identity() for transform in self.transforms)]
        return (
            words[0] if len(words) == 1 else hashlib.sha256("\n".join(words).encode()).hexdigest()
        )

    @property
    def token_bytes(self) -> Int64[Tensor, " vocab"]:
        """The number of UTF-8 bytes that each token stands for; 0 for special tokens."""
        return require_prepared(self._prepared).token_bytes
