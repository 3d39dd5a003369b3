"""From text to batches: sources, tokenizers, prepared corpora, and streams of tokens."""

from fidgpt.data.cache import cache_directory
from fidgpt.data.corpus import Corpus, CorpusDirectory
from fidgpt.data.errors import DataError
from fidgpt.data.packing.best_fit import best_fit
from fidgpt.data.packing.fill_in_the_middle import FillInTheMiddle
from fidgpt.data.packing.packing import Packing, Sequences, concatenate
from fidgpt.data.packing.shuffled import shuffle_and_concatenate
from fidgpt.data.packing.transforms import Transform
from fidgpt.data.packing.unlearned import (
    count_learned,
    inputs_and_targets,
    learns_all,
    tokens_of,
    unlearned,
)
from fidgpt.data.preparing.preparation import prepare_corpus
from fidgpt.data.preparing.prepared import PreparedCorpus, Split
from fidgpt.data.sources.hub_dataset import HubDataset
from fidgpt.data.sources.sources import Source, StandardLibrary, TextFiles
from fidgpt.data.streams.annealing import annealed
from fidgpt.data.streams.growing import GrowingBatch, GrowingSequence
from fidgpt.data.streams.held_out import HeldOut
from fidgpt.data.streams.mixture import Mixture, Stage
from fidgpt.data.streams.prefetch import Prefetch
from fidgpt.data.streams.stream import TokenStream
from fidgpt.data.streams.streams import (
    BegunStage,
    Curve,
    EvaluationStream,
    IndexedStream,
    TrainingStream,
)
from fidgpt.data.tokenizers.bpe import BPETokenizer
from fidgpt.data.tokenizers.byte_level import ByteLevelTokenizer
from fidgpt.data.tokenizers.byte_tokenizer import ByteTokenizer
from fidgpt.data.tokenizers.corpus_tokenizer import CorpusTokenizer
from fidgpt.data.tokenizers.tokenizer import (
    StreamDecoder,
    Tokenizer,
    TokenizerSpec,
    check_vocab_size,
    end_of_text,
)
from fidgpt.data.tokenizers.tokenizer_files import TokenizerFile, load_tokenizer

__all__ = [
    "BPETokenizer",
    "BegunStage",
    "ByteLevelTokenizer",
    "ByteTokenizer",
    "Corpus",
    "CorpusDirectory",
    "CorpusTokenizer",
    "Curve",
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
    "learns_all",
    "load_tokenizer",
    "prepare_corpus",
    "shuffle_and_concatenate",
    "tokens_of",
    "unlearned",
]
