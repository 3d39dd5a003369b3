"""The tokenizer of another text, so that several texts have the same tokens."""

from collections.abc import Sequence

from fidgpt.data.corpus import Corpus
from fidgpt.data.tokenizers.tokenizer import Tokenizer


class CorpusTokenizer:
    """The tokenizer that a corpus has, or will have once it is prepared."""

    sample_bytes = 0

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def identity(self) -> str:
        """That of the prepared corpus, which is prepared first."""
        return f"of corpus {self.corpus.prepare().key}"

    def end_of_text_id(self) -> int:
        """As the corpus's own tokenizer says."""
        return self.corpus.tokenizer.end_of_text_id()

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Prepare the corpus, and take its tokenizer."""
        return self.corpus.prepare().tokenizer
