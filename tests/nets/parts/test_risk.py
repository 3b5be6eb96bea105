from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.tiny_work import make_work, site
from unseen.method import Method
from unseen.nets.parts.risk import received_risk


def test_the_risk_is_the_mean_over_all_training_images_and_changes_nothing() -> None:
    work = make_work(Method(), site=site(count=70))  # more than one batch
    before = {key: value.clone() for key, value in work.net.state_dict().items()}
    risk = received_risk(work)
    assert work.net.training
    assert all(torch.equal(value, before[key]) for key, value in work.net.state_dict().items())
    work.net.eval()
    images = work.site.train.batch(torch.arange(70))
    with torch.no_grad():
        expected = F.cross_entropy(work.net(images.x), images.y)
    torch.testing.assert_close(risk.float(), expected)
