"""What must hold for every registered method: a new method is tested by existing."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from tests.tiny_federation import federation, same
from tests.tiny_work import batch, make_work, random_images, tiny_net
from unseen.core.tensors import load, snapshot
from unseen.core.words import ONE_OWNER
from unseen.engines.local import LocalEngine
from unseen.federation.calibrate import pooled
from unseen.federation.server import evaluate
from unseen.method import Method, overrides
from unseen.methods import FAMILIES, by_family, cards
from unseen.registry import parse, registered

METHODS = list(registered())
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", METHODS)
def test_uploads_what_share_says_and_counts_it(name: str, tmp_path: Path) -> None:
    fed = federation(name, tmp_path, rounds=1, local_steps=2)
    (played,) = fed.run()
    sent = {key.split("/", 2)[2] for key in fed.ledger.entries if key.startswith("up/model/")}
    assert sent == set(fed.share.up)
    assert bool(played.bytes_up)
    if any("/statistics/" in key for key in fed.ledger.entries):
        assert fed.method.about.sends, "it sends more than weights: `sends` of its traits must say what"


@pytest.mark.parametrize("name", METHODS)
def test_says_that_it_sends_more_only_if_it_does(name: str, tmp_path: Path) -> None:
    fed = federation(name, tmp_path, rounds=2, local_steps=1)
    if not fed.method.about.sends:
        return
    fed.run()
    crossed = any("/statistics/" in key for key in fed.ledger.entries)  # up, or down: one client's weights to another
    extra = bool(fed.net.extras.state_dict()) and any(key.startswith("extras.") for key in fed.share.up)
    scores = fed.method.about.validates_locally
    assert crossed or extra or scores  # tensors of its own, a side network's weights, or numbers


@pytest.mark.parametrize("name", METHODS)
def test_every_trainable_tensor_gets_a_gradient(name: str, tmp_path: Path) -> None:
    """Within a round: phases, alternations and coins included. Catches a generator that never trains.

    By the way: no more passes than it says that a step costs.
    """
    fed = federation(name, tmp_path, rounds=1, local_steps=12)
    reached: set[str] = set()
    begun: list[int] = []  # sizes of the batches that the first stage saw while it trained
    first = fed.net.stage_modules()[0][0]
    first.register_forward_pre_hook(
        lambda _, inputs: begun.append(len(inputs[0])) if fed.net.training and torch.is_grad_enabled() else None
    )
    hooks = [
        parameter.register_post_accumulate_grad_hook(
            lambda p, key=key: reached.add(key) if bool(p.grad.abs().sum() > 0) else None
        )
        for key, parameter in fed.net.named_parameters()
        if parameter.requires_grad
    ]
    fed.run()
    missing = {key for key, p in fed.net.named_parameters() if p.requires_grad} - reached
    for hook in hooks:
        hook.remove()
    assert not missing
    images = len(fed.clients) * 12 * fed.plan.batch_size
    assert sum(begun) <= 1.01 * math.ceil(fed.method.passes) * images


@pytest.mark.parametrize("name", METHODS)
def test_predict_does_not_depend_on_the_batch(name: str, tmp_path: Path) -> None:
    fed = federation(name, tmp_path, rounds=1, local_steps=3)
    fed.run()
    load(fed.net, {**fed.runner.initial, **fed.server.state})
    fed.net.eval()
    x = random_images(6, seed=5).x
    with torch.no_grad():
        together = fed.method.predict(fed.net, x)
        alone = torch.cat([fed.method.predict(fed.net, x[i : i + 1]) for i in range(6)])
    assert together.shape == (6, 3)
    scale = max(1.0, float(together.abs().max()))  # noise makes large logits
    assert torch.allclose(together, alone, atol=1e-4 * scale)
    # Its clients calibrate it, by its own prediction. A score that is the same for all images would tell nothing apart.
    with LocalEngine(fed.runner, fed.clients, 1) as engine:
        found = pooled(evaluate(engine, fed.server.state, 1, fed.ledger, calibrate=True).calibrating)
    assert found is not None and found.images == 36 and sum(found.true_odds) == 36
    assert found.error_after >= 0 and found.largest_logit[0] < found.largest_logit[-1]


@pytest.mark.parametrize("name", METHODS)
def test_other_seed_other_bits(name: str, tmp_path: Path) -> None:
    one = federation(name, tmp_path / "1", rounds=1, local_steps=2)
    two = federation(name, tmp_path / "2", rounds=1, local_steps=2, seed=1)
    load(two.net, snapshot(one.net))
    two.server.state = dict(one.server.state)
    one.run()
    two.run()
    assert not same(one.server.state, two.server.state)


@pytest.mark.parametrize("name", METHODS)
def test_has_a_page_a_citation_and_meanings(name: str) -> None:
    kind = registered()[name]
    page = ROOT / "docs" / "methods" / f"{kind.__module__.rpartition('.')[2]}.md"  # one page per file
    assert page.exists(), f"{page.name} is missing"
    assert len(page.read_text()) > 300
    source = Path(__import__(kind.__module__, fromlist=["x"]).__file__).read_text()
    assert re.search(r"(19|20)\d\d", source.split('"""')[1]) or "ours" in source.split('"""')[1].lower()


@pytest.mark.parametrize("name", METHODS)
def test_has_a_row_in_the_table_of_methods_that_says_what_it_sends(name: str) -> None:
    kind = registered()[name]
    page = f"{kind.__module__.rpartition('.')[2]}.md"
    table = (ROOT / "docs" / "methods" / "index.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith(f"| [`{name}`]({page}) |")]
    assert len(rows) == 1
    _, _, year, published, idea, sends, _ = (cell.strip() for cell in rows[0].split("|"))
    assert year == str(kind.year) and published and idea
    assert bool(sends) == bool(kind.traits.sends)


@pytest.mark.parametrize("name", METHODS)
def test_its_card_says_without_torch_what_the_class_says(name: str) -> None:
    kind, card = registered()[name], cards()[name]
    assert (card.year, card.family, card.passes) == (kind.year, kind.family, kind.passes)
    assert kind.year > 1990 and kind.family and kind.family in FAMILIES
    about = kind().about
    if not about.noise:  # with noise the remark says how much of it, which is no difference from the paper
        assert card.remark == about.remark
    assert set(card.owns) == {verb for verb in ONE_OWNER if overrides(kind(), verb)}
    assert card in by_family()[kind.family]


def test_no_method_drops_out_of_the_list() -> None:
    assert sorted(card.name for group in by_family().values() for card in group) == sorted(cards())


def test_silobn_equals_fedavg_under_full_participation(tmp_path: Path) -> None:
    """In training the running statistics do not touch the gradient, and averaging is linear (METHODS, 0 d)."""
    fedavg = federation("fedavg", tmp_path / "1", rounds=1)
    silobn = federation("silobn", tmp_path / "2", rounds=1)
    fedavg.run()
    silobn.run()
    assert same(fedavg.server.state, silobn.server.state)


def test_silobn_equals_fedavg_up_to_rounding_over_rounds(tmp_path: Path) -> None:
    fedavg = federation("fedavg", tmp_path / "1", rounds=3)
    silobn = federation("silobn", tmp_path / "2", rounds=3)
    fedavg.run()
    silobn.run()
    for key, value in fedavg.server.state.items():
        assert torch.allclose(value.double(), silobn.server.state[key].double(), rtol=1e-4, atol=1e-5), key


def test_an_empty_method_is_fedavg() -> None:
    one, two = make_work(Method()), make_work(parse("fedavg"))
    one.method.step(one, batch())
    two.method.step(two, batch())
    assert same(snapshot(one.net), snapshot(two.net))
    assert tiny_net(parse("fedavg")).share_all() == parse("fedavg").share(tiny_net(parse("fedavg")))
