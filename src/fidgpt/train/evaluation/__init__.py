"""What is measured of a model from time to time: held-out text, whole or by domain, and tasks."""

from fidgpt.train.evaluation.answers import Answers
from fidgpt.train.evaluation.evaluator import Evaluator, evaluating
from fidgpt.train.evaluation.harness import Tasks, harness_model
from fidgpt.train.evaluation.likelihood import Likelihood, likelihoods
from fidgpt.train.evaluation.tasks import TaskEvaluation
from fidgpt.train.evaluation.validation import DomainValidation, Validation

__all__ = [
    "Answers",
    "DomainValidation",
    "Evaluator",
    "Likelihood",
    "TaskEvaluation",
    "Tasks",
    "Validation",
    "evaluating",
    "harness_model",
    "likelihoods",
]
