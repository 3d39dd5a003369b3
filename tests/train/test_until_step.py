"""Training in stretches: ended after a step, and gone on with as if it had not been."""

from fidgpt.train.checkpoints import newest_good


def test_a_run_in_stretches_has_the_numbers_of_one_that_was_not_ended(cfg, train, tmp_path):
    cfg.checkpoints.every = None
    whole = train(cfg, "whole")
    first = train(cfg, until_step=3)
    assert [row["step"] for row in first] == [1, 2, 3]
    assert newest_good(tmp_path / "run") == 3
    assert train(cfg, resume=True, until_step=3) == first  # it was there already
    train(cfg, resume=True, until_step=7)
    rows = train(cfg, resume=True, until_step=cfg.num_steps + 5)
    assert [row["loss"] for row in rows] == [row["loss"] for row in whole]
    assert rows[-1]["validation/loss"] == whole[-1]["validation/loss"]
