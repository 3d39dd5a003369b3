"""From text to batches: sources, tokenizers, prepared corpora, and streams of tokens."""

from fidgpt.data.bpe import BPETokenizer
from fidgpt.data.byte_level import ByteLevelTokenizer
from fidgpt.data.byte_tokenizer import ByteTokenizer
from fidgpt.data.cache import cache_directory
from fidgpt.data.corpus import Corpus, CorpusDirectory
from fidgpt.data.errors import DataError
from fidgpt.data.held_out import HeldOut
from fidgpt.data.preparation import prepare_corpus
from fidgpt.data.prepared import PreparedCorpus, Split
from fidgpt.data.sources import Source, StandardLibrary, TextFiles
from fidgpt.data.stream import TokenStream
from fidgpt.data.streams import EvaluationStream, TrainingStream
from fidgpt.data.tokenizer import StreamDecoder, Tokenizer, TokenizerSpec, check_vocab_size
from fidgpt.data.tokenizer_files import TokenizerFile, load_tokenizer

__all__ = [
    "BPETokenizer",
    "ByteLevelTokenizer",
    "ByteTokenizer",
    "Corpus",
    "CorpusDirectory",
    "DataError",
    "EvaluationStream",
    "HeldOut",
    "PreparedCorpus",
    "Source",
    "Split",
    "StandardLibrary",
    "StreamDecoder",
    "TextFiles",
    "TokenStream",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerSpec",
    "TrainingStream",
    "cache_directory",
    "check_vocab_size",
    "load_tokenizer",
    "prepare_corpus",
]
