"""From text to batches: sources, tokenizers, prepared corpora, and streams of tokens."""

from fidgpt.data.annealing import annealed
from fidgpt.data.best_fit import best_fit
from fidgpt.data.bpe import BPETokenizer
from fidgpt.data.byte_level import ByteLevelTokenizer
from fidgpt.data.byte_tokenizer import ByteTokenizer
from fidgpt.data.cache import cache_directory
from fidgpt.data.corpus import Corpus, CorpusDirectory
from fidgpt.data.corpus_tokenizer import CorpusTokenizer
from fidgpt.data.errors import DataError
from fidgpt.data.fill_in_the_middle import FillInTheMiddle
from fidgpt.data.growing import GrowingBatch, GrowingSequence
from fidgpt.data.held_out import HeldOut
from fidgpt.data.hub_dataset import HubDataset
from fidgpt.data.mixture import Mixture, Stage
from fidgpt.data.packing import Packing, Sequences, concatenate
from fidgpt.data.prefetch import Prefetch
from fidgpt.data.preparation import prepare_corpus
from fidgpt.data.prepared import PreparedCorpus, Split
from fidgpt.data.shuffled import shuffle_and_concatenate
from fidgpt.data.sources import Source, StandardLibrary, TextFiles
from fidgpt.data.stream import TokenStream
from fidgpt.data.streams import EvaluationStream, IndexedStream, TrainingStream
from fidgpt.data.tokenizer import (
    StreamDecoder,
    Tokenizer,
    TokenizerSpec,
    check_vocab_size,
    end_of_text,
)
from fidgpt.data.tokenizer_files import TokenizerFile, load_tokenizer
from fidgpt.data.transforms import Transform
from fidgpt.data.unlearned import count_learned, inputs_and_targets, tokens_of, unlearned

__all__ = [
    "BPETokenizer",
    "ByteLevelTokenizer",
    "ByteTokenizer",
    "Corpus",
    "CorpusDirectory",
    "CorpusTokenizer",
    "DataError",
    "EvaluationStream",
    "FillInTheMiddle",
    "GrowingBatch",
    "GrowingSequence",
    "HeldOut",
    "HubDataset",
    "IndexedStream",
    "Mixture",
    "Packing",
    "Prefetch",
    "PreparedCorpus",
    "Sequences",
    "Source",
    "Split",
    "Stage",
    "StandardLibrary",
    "StreamDecoder",
    "TextFiles",
    "TokenStream",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerSpec",
    "TrainingStream",
    "Transform",
    "annealed",
    "best_fit",
    "cache_directory",
    "check_vocab_size",
    "concatenate",
    "count_learned",
    "end_of_text",
    "inputs_and_targets",
    "load_tokenizer",
    "prepare_corpus",
    "shuffle_and_concatenate",
    "tokens_of",
    "unlearned",
]
