"""Writing and scoring text with a trained model, by the same modules that were trained."""

from fidgpt.model.cpu.weights import *
from fidgpt.model.generation.decoding import *
from fidgpt.model.generation.scoring import *
from fidgpt.model.generation.writing import *
