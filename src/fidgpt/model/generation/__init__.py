"""Writing and scoring text with a trained model, by the same modules that were trained."""

from fidgpt.model.cpu.weights import prepare_to_write
from fidgpt.model.generation.decoding import (
    Chance,
    Draw,
    LogitFilter,
    MinP,
    RepetitionPenalty,
    Sampling,
    Temperature,
    TopK,
    TopP,
    UntilString,
    Vocabulary,
    likeliest,
    sampling,
)
from fidgpt.model.generation.scoring import Score, log_probabilities, score
from fidgpt.model.generation.writing import Choice, generate, next_logits, write

__all__ = [
    "Chance",
    "Choice",
    "Draw",
    "LogitFilter",
    "MinP",
    "RepetitionPenalty",
    "Sampling",
    "Score",
    "Temperature",
    "TopK",
    "TopP",
    "UntilString",
    "Vocabulary",
    "generate",
    "likeliest",
    "log_probabilities",
    "next_logits",
    "prepare_to_write",
    "sampling",
    "score",
    "write",
]
