"""What changes sequences on their way to the model: the contract of such a part."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.tokenizers.tokenizer import Tokenizer


@runtime_checkable
class Transform(Protocol):
    """Changes sequences; a pure function of them, their numbers and the seed."""

    def check(self, tokenizer: Tokenizer, /) -> None:
        """Raises DataError where it cannot work with a tokenizer."""
        ...

    def identity(self) -> str:
        """A text that changes whenever it would change sequences in another way."""
        ...

    def __call__(
        self,
        rows: NDArray[np.int64],
        /,
        *,
        indices: NDArray[np.int64],
        seed: int,
        tokenizer: Tokenizer,
    ) -> NDArray[np.int64]:
        """Rows of the same length, [len(indices), seq_len + 1].

        Args:
          rows: token ids; negative where they are not learned (see `fidgpt.data.unlearned`).
          indices: the number of each row, counted from the beginning of the run.
          seed: of the stream.
          tokenizer: that the tokens come from.
        """
        ...
