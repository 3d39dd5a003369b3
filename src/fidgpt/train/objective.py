"""What is minimised: the loss of every next token, as one module."""

from jaxtyping import Float, Int64
from torch import Tensor, nn

from fidgpt.model.language_model import LanguageModel
from fidgpt.train.loss import CrossEntropy


class NextToken(nn.Module):
    """Model and loss together, so that whatever wraps modules sees one forward pass."""

    def __init__(self, model: LanguageModel, loss: CrossEntropy) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Int64[Tensor, "rows window"]) -> Float[Tensor, ""]:
        """Mean loss in nats of predicting tokens 1.. of each row from those before."""
        features = self.model.features(batch[:, :-1])
        targets = batch[:, 1:].flatten()
        return self.loss(features.flatten(0, 1), self.model.unembedding, targets)
