"""Where the time of a step goes."""

import time

import torch

from fidgpt.train.meters import Stopwatch


def test_seconds_add_up_by_phase_until_they_are_taken():
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        with watch.phase("forward"):
            time.sleep(0.01)
    with watch.phase("backward"):
        pass
    taken = watch.take()
    assert taken.keys() == {"seconds/forward", "seconds/backward"}
    assert taken["seconds/forward"] >= 0.02 > taken["seconds/backward"] >= 0
    assert watch.take() == {}


def test_a_row_splits_its_step_and_a_save_counts_for_the_next_one(cfg, train):
    cfg.num_steps, cfg.checkpoints.every, cfg.micro_batch_size = 3, 2, 1
    first, second, third = train(cfg)
    parts = ("data", "forward", "backward", "optimizer")
    for row in (first, second, third):
        seconds = [row[f"seconds/{name}"] for name in parts]
        assert min(seconds) > 0
        assert sum(seconds) <= 64 / row["tokens_per_second"]
    assert "seconds/saving" in third and "seconds/saving" not in second
    assert third["seconds/evaluation"] > 0
