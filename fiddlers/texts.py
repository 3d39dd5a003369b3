"""The text that a config trains on."""

from typing import Any

import fiddle as fdl

from fidgpt.data import Corpus, CorpusTokenizer, Mixture, TextFiles

OWN = "own"  # the name of that text in a mixture


def own_corpus(cfg: fdl.Config[Any]) -> fdl.Buildable:
    """Return the corpus of the config's own text, inside of all mixtures."""
    stream = cfg.data
    while fdl.get_callable(stream) is Mixture:
        stream = stream.streams[OWN if OWN in stream.streams else min(stream.streams)]
    return stream.corpus


def text_like(corpus: fdl.Buildable, path: str, *, text_field: str) -> fdl.Config[Corpus]:
    """Return a corpus of files with the tokenizer of another corpus."""
    own = fdl.Config(Corpus, source=fdl.Config(TextFiles, path, text_field=text_field))
    own.tokenizer = fdl.Config(CorpusTokenizer, corpus)
    return own
