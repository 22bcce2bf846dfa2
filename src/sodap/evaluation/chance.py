"""AvgF that a method without forgetting would show.

AvgF begins at the highest of several noisy numbers, so that it is above 0 without any forgetting.
How far depends on the number of test images and on how many answers change from stage to stage.

A method does not forget a domain if the stages since it was learned are exchangeable: in each unit
(a patient, or an image without a group) the outcomes might have come in any other order. So the
stages of every unit are put in random order, independently of all other units, and AvgF is
computed again. The mean over many such orders is the value without forgetting. As many answers
change as before, but their changes cancel out.

If a method does forget, the answers that it lost count as changes too, so the value is rather too
high than too low.
"""

from __future__ import annotations

import numpy as np

from sodap.evaluation.answers import Answers

ORDERS = 200
"""Random orders of the stages. The mean of so many is exact to a tenth of its size."""


def forgetting_by_chance(answers: Answers, orders: int = ORDERS) -> float | None:
    """AvgF without forgetting; None after one stage."""
    stages = len(answers[0].answers)
    if stages == 1:
        return None
    rng = np.random.default_rng(0)
    lost = []
    for domain, each in enumerate(answers[: stages - 1]):
        units, places = np.unique(each.units, return_inverse=True)
        sums = np.zeros((len(units), stages - domain))  # right answers of each unit and stage
        for stage, right in enumerate(each.right[domain:]):
            np.add.at(sums[:, stage], places, right)
        sums = sums[(sums != sums[:, :1]).any(1)]  # the others add the same to every stage
        shuffled = rng.permuted(np.broadcast_to(sums, (orders, *sums.shape)), axis=2)
        accuracies = shuffled.sum(1) / len(each.labels)  # [orders, stages - domain]
        lost.append(float((accuracies.max(1) - accuracies[:, -1]).mean()))
    return float(np.mean(lost))
