"""Generation and scoring of text."""

from fidgpt.model.generation.batching import *
from fidgpt.model.generation.decoding import *
from fidgpt.model.generation.scoring import *
from fidgpt.model.generation.speculation import *
from fidgpt.model.generation.weights import *
from fidgpt.model.generation.writing import *
