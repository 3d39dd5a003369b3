"""What is minimised: the loss of every next token, as one module."""

from jaxtyping import Float, Int64
from torch import Tensor, nn

from fidgpt.data import inputs_and_targets
from fidgpt.model.language_model import LanguageModel
from fidgpt.model.reports import collecting, report_metric
from fidgpt.train.losses.loss import CrossEntropy


class NextToken(nn.Module):
    """Model and loss together, so that whatever wraps modules sees one forward pass."""

    def __init__(self, model: LanguageModel, loss: CrossEntropy) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(
        self, batch: Int64[Tensor, "rows window"], learns_all: bool | None = None
    ) -> Float[Tensor, ""]:
        """Mean loss in nats of predicting tokens 1.. of each row from those before.

        A token that is not learned is read and not predicted (see `fidgpt.data.unlearned`).
        What parts report as losses is added; the metric `loss` is without it.

        Args:
          batch: tokens, learned or not.
          learns_all: whether each of them is learned, where that is known without a look at them.
        """
        with collecting() as reports:
            inputs, targets, counted = inputs_and_targets(batch, all_learned=learns_all)
            features = self.model.features(inputs).flatten(0, 1)
            counted = None if counted is None else counted.flatten()
            loss = self.loss(features, self.model.unembedding, targets.flatten(), counted)
        report_metric("loss", loss)
        return sum(reports.losses.values(), loss)
