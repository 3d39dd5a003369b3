"""From text to batches: sources, tokenizers, prepared corpora, and streams of tokens."""

from fidgpt.data.corpus import Corpus, CorpusDirectory, CorpusTokenizer
from fidgpt.data.datasets import HubDataset
from fidgpt.data.errors import DataError
from fidgpt.data.growing import GrowingBatch, GrowingSequence
from fidgpt.data.mixture import Mixture, Stage, annealed
from fidgpt.data.packing import Packing, Sequences, best_fit, concatenate, shuffle_and_concatenate
from fidgpt.data.prefetch import Prefetch
from fidgpt.data.preparation import prepare_corpus
from fidgpt.data.prepared import PreparedCorpus, Split
from fidgpt.data.sources import Source, StandardLibrary, TextFiles
from fidgpt.data.streams import (
    BegunStage,
    Curve,
    EvaluationStream,
    HeldOut,
    IndexedStream,
    TokenStream,
    TrainingStream,
)
from fidgpt.data.tokenizers import (
    BPETokenizer,
    ByteLevelTokenizer,
    ByteTokenizer,
    StreamDecoder,
    Tokenizer,
    TokenizerFile,
    TokenizerSpec,
    check_vocab_size,
    end_of_text,
    load_tokenizer,
)
from fidgpt.data.transforms import (
    FillInTheMiddle,
    Transform,
    all_in_loss,
    count_loss_targets,
    inputs_and_targets,
    mask_loss,
    token_ids,
)

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
    "all_in_loss",
    "annealed",
    "best_fit",
    "check_vocab_size",
    "concatenate",
    "count_loss_targets",
    "end_of_text",
    "inputs_and_targets",
    "load_tokenizer",
    "mask_loss",
    "prepare_corpus",
    "shuffle_and_concatenate",
    "token_ids",
]
