"""Known answers: an attack wins where it provably can, and is at chance where there is nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.audits.tiny_audit import Audited, audited, everything
from tests.tiny_work import random_images, tiny_net
from unseen.audits.attack import Observed, Truth, rows_of, update_of
from unseen.audits.attacks.classes import ToldClasses
from unseen.audits.attacks.domain import DomainOfUpdate, kinds_of
from unseen.audits.attacks.features import HeadFeatures, layer_input
from unseen.audits.attacks.generator import GeneratorDistance
from unseen.audits.attacks.labels import LabelCounts, overlap, shares_from
from unseen.audits.attacks.matching import Case, GradientMatching, match, simulated, start_of
from unseen.audits.attacks.membership import FinalModelMembership, membership_scores, rmia
from unseen.audits.attacks.norms import NormCounts, norm_inputs, running_means, shares_behind
from unseen.audits.attacks.spectra import SpectrumMatching, amplitudes_of, from_amplitude_and_phase, retrieve
from unseen.audits.attacks.style_decoder import StyleDecoder, decoder_of
from unseen.audits.attacks.styles import Game, StyleMatching
from unseen.audits.attacks.update_membership import UpdateMembership, cosines, standing
from unseen.audits.measures import auc, candidates_of_a_class, found_at, likeness, proportion
from unseen.core.types import Batch
from unseen.data.memory import TensorImages
from unseen.methods.ccst import CCST


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return audited("fedavg", tmp_path_factory.mktemp("fedavg"), effort=0.2)


# --- measures --------------------------------------------------------------------------------------------------------
def test_auc_counts_pairs_and_ties_half() -> None:
    assert auc([3, 2], [1, 2]).value == (1 + 1 + 1 + 0.5) / 4
    assert auc(np.arange(10, 20), np.arange(10)).value == 1.0
    blind = auc(np.arange(200) % 7, np.arange(200) % 7)
    assert blind.value == 0.5 and blind.low < 0.5 < blind.high and not blind.leaks


def test_found_at_lets_one_percent_pass() -> None:
    others = np.arange(200)  # 1 % are two: 198 is the threshold that 199 alone passes, and 197 would let two pass
    assert found_at(np.array([197.5, 198.5, 300, 0]), others).value == 0.75
    assert found_at(np.full(10, 0), others).value == 0.0


def test_exact_intervals_by_hand() -> None:
    """All of n: the lower end is the share p with p^n = 0.025. One of 16 is not yet more than a chance of 1 %."""
    found = proportion(16, 16)
    assert found.low == pytest.approx(0.025 ** (1 / 16)) and found.high == 1.0
    half = proportion(5, 10)
    assert (round(half.low, 4), round(half.high, 4)) == (0.1871, 0.8129)
    assert not proportion(1, 16, chance=0.01).leaks and proportion(2, 16, chance=0.01).leaks


def test_a_guess_by_the_label_alone() -> None:
    """Ten candidates of each class: one image is one of ten; two of a class in a batch are two of ten."""
    labels = torch.arange(100) % 10
    assert candidates_of_a_class(labels, [torch.tensor([3])]) == pytest.approx(10)
    assert candidates_of_a_class(labels, [torch.tensor([3, 3]), torch.tensor([5, 5])]) == pytest.approx(5)
    assert candidates_of_a_class(labels, [torch.tensor([1, 2, 3, 4])]) == pytest.approx(10)


# --- updates ---------------------------------------------------------------------------------------------------------
def test_a_linear_layer_with_bias_gives_the_image_back_exactly() -> None:
    torch.manual_seed(0)
    image, layer = torch.rand(1, 3 * 8 * 8, dtype=torch.float64), nn.Linear(192, 5).double()
    F.cross_entropy(layer(image), torch.tensor([3])).backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None
    assert torch.allclose(layer_input(layer.weight.grad, layer.bias.grad), image[0], atol=1e-12)


def test_features_of_one_image_name_it_among_all_candidates(fedavg: Audited) -> None:
    one, four = HeadFeatures(batches=(1, 4)).attack(fedavg.observed, fedavg.known, fedavg.truth)
    assert one.identified_of_100 is not None and one.identified_of_100.value == 100.0
    assert not one.real and four.identified_of_100 is not None


def test_a_net_that_trains_on_no_single_image_is_attacked_in_batches(fedavg: Audited) -> None:
    """A neck with BatchNorm over features, as PACS's net has: one image is an error there, four are not."""
    known = replace(fedavg.known, build=lambda: tiny_net(fedavg.known.method, bottleneck=16))
    state = {name: value.clone() for name, value in known.initial.items()}
    observed = Observed((replace(fedavg.observed.first, received=state, state=state),))
    one, four = HeadFeatures(batches=(1, 4)).attack(observed, known, fedavg.truth)
    assert "more than 1 value per channel" in one.failed and one.identified_of_100 is None
    assert not four.failed and four.identified_of_100 is not None


def test_class_shares_from_one_step_are_exact() -> None:
    """With a head of zeros every probability is 1 / K, and the bias's gradient holds the counts themselves."""
    labels = torch.tensor([0, 0, 0, 2, 2, 4])
    logits = torch.zeros(6, 5, dtype=torch.float64, requires_grad=True)
    F.cross_entropy(logits, labels).backward()
    assert logits.grad is not None
    shares = shares_from(logits.grad.sum(0), torch.full((5,), 0.2, dtype=torch.float64))
    assert torch.allclose(shares * 6, torch.tensor([3.0, 0, 2, 0, 1], dtype=torch.float64))
    assert overlap(shares, torch.tensor([0.5, 0, 0.5, 0, 0])) == pytest.approx(5 / 6)


def test_class_counts_of_a_client_with_one_class(fedavg: Audited) -> None:
    """Where a client has one class only, the guess of equal classes is right for a third, and the attack for most."""
    rare = random_images(48)
    only = rows_of(everything(rare), rare.y == 1)
    one = fedavg.observed.first
    reply = fedavg.known.reply(only, one, batch_size=16, local_steps=1, local_epochs=None)
    guess = LabelCounts()._guess(replace(one, state=reply.state), fedavg.known, 1)
    assert guess[1] > 0.9
    step, real = LabelCounts(batch=8).attack(fedavg.observed, fedavg.known, fedavg.truth)
    assert not step.real and real.real and real.scores["images counted right"].value <= 1.0


def test_a_simulated_update_is_that_of_the_client_loop(fedavg: Audited) -> None:
    """Four steps with momentum over two batches, by the attacker and by the library's own loop: the same numbers."""
    victim, one = everything(random_images(8, seed=3)), fedavg.observed.first
    reply = fedavg.known.reply(victim, one, batch_size=8, local_steps=3, local_epochs=None)
    sent = update_of(one.received, reply.state, sorted(fedavg.known.stepped))
    work = fedavg.known.work(one, victim)
    moved = simulated(work, start_of(one, fedavg.known), victim, [slice(0, 8)] * 3)
    for name, value in sent.items():
        assert torch.allclose(moved[name].double(), value, atol=2e-5), name


def test_gradient_matching_gives_an_image_back_where_the_gradient_holds_it() -> None:
    """A linear model: the direction of its gradient is the image, so that matching it must find the image."""
    torch.manual_seed(0)
    image = torch.zeros(1, 3, 8, 8)
    image[:, 0, 2:6, 2:6] = 1.0
    image[:, 1, :, :4] = 0.5
    weight, label = torch.randn(4, 192) * 0.01, torch.tensor([2])

    def moved(x: torch.Tensor) -> dict[str, torch.Tensor]:
        w = weight.clone().requires_grad_()
        loss = F.cross_entropy(x.flatten(1) @ w.T, label)
        return {"w": torch.autograd.grad(loss, w, create_graph=True)[0]}

    sent = {name: value.detach() for name, value in moved(image).items()}
    found = match(moved, sent, torch.rand(image.shape), 150, 0.1, 1e-4)
    cosine = F.cosine_similarity(found.flatten(), image.flatten(), dim=0)
    assert cosine > 0.99


def test_gradient_matching_runs_every_case_on_a_client(fedavg: Audited) -> None:
    attack = GradientMatching((Case(1, 1), Case(1, 1, norms="eval"), Case(4, 2)), iterations=10)
    known = replace(fedavg.known, effort=1.0)
    found = attack.attack(fedavg.observed, known, fedavg.truth)
    assert [finding.real for finding in found] == [False] * 3
    assert [next(iter(finding.pictures.values())).shape for finding in found] == [
        (66, 32, 3),
        (66, 32, 3),
        (66, 128, 3),
    ]


def test_features_of_a_random_update_name_no_image(fedavg: Audited) -> None:
    """Noise in the place of the features: of 3 classes with a third of the candidates each, nothing above chance."""
    attack, one = HeadFeatures(), fedavg.observed.first
    pool = fedavg.truth.members(one.client, 100)
    candidates = attack._inputs(one, pool, fedavg.known, alone=True)
    noise = torch.randn(2000, candidates.shape[1], generator=torch.Generator().manual_seed(0))
    found = likeness(noise, candidates).argmax(1)
    assert not proportion(int((found == torch.arange(2000) % len(pool)).sum()), 2000, 1 / len(pool)).leaks


# --- norms -----------------------------------------------------------------------------------------------------------
def test_shares_behind_a_mixture_are_exact() -> None:
    of_class = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)).double()
    shares = torch.tensor([0.5, 0.0, 0.3, 0.2]).double()
    assert torch.allclose(shares_behind(shares @ of_class, of_class), shares, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "dson", "gperxan"])
def test_norm_layers_tell_the_classes_of_a_site(method: str, tmp_path: Path) -> None:
    """A site with one class, and an attacker with other images of this kind: its running means are that class's."""
    made = audited(method, tmp_path, effort=0.2)
    attack, one, images = NormCounts(), made.observed.first, random_images(48)
    assert attack.fits(made.observed, made.known) and norm_inputs(made.known.net, images.x)
    assert set(running_means(made.known.net).values()) <= set(made.known.net.state_dict())
    known = replace(made.known, plan=replace(made.known.plan, local_steps=30))
    guesses, own = [], everything(random_images(60, seed=9))
    for label in (0, 1):
        reply = known.reply(rows_of(everything(images), images.y == label), one)
        guesses.append(attack.guess(replace(one, state=reply.state, report=reply.report), own, known)[label])
    assert min(guesses) > 0.6
    found, *lent = attack.attack(made.observed, made.known, made.truth)
    assert found.real and 0 <= found.scores["images counted right"].value <= 1
    assert [f.plays for f in lent] == (["site"] if method == "dson" else [])  # its branches go down to all


# --- membership ------------------------------------------------------------------------------------------------------
def test_rmia_by_hand() -> None:
    """One image with p = 0.9 that references give 0.1, and one that all models give 0.5; compared with z at 0.5 / 0.5."""
    target, outside = torch.tensor([0.9, 0.5]).double(), torch.tensor([[0.1, 0.5]]).double()
    others = torch.tensor([0.5]).double()
    # p(x) = (1.3 * 0.1 + 0.7) / 2 = 0.415: ratio 2.17; z: (1.3 * 0.5 + 0.7) / 2 = 0.675: ratio 0.741; LR = 2.93 and 1
    assert rmia(target, outside, others, others[None]).tolist() == [1.0, 0.0]


def noise(count: int, seed: int) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=rng)
    return Batch(torch.rand(count, 3, 32, 32, generator=rng), labels, torch.zeros_like(labels))


def test_a_model_trained_to_overfit_gives_its_members_away(fedavg: Audited) -> None:
    one, members = fedavg.observed.first, noise(24, seed=1)
    reply = fedavg.known.reply(members, one, batch_size=8, local_steps=60, local_epochs=None)

    def images(batch: Batch) -> TensorImages:
        return TensorImages(batch.x, batch.y, batch.domain)

    site = replace(fedavg.truth.sites["a"], train=images(members), validation=images(noise(60, seed=2)))
    observed = Observed((one,), {**one.received, **reply.state})
    attack = FinalModelMembership(images=40, references=1)
    loss, ratio = attack.attack(observed, fedavg.known, Truth({"a": site}))
    assert loss.scores["AUC"].value > 0.9 and loss.scores["AUC"].leaks
    assert ratio.scores["AUC"].value > 0.8
    # Held-out against held-out: there is nothing to find.
    nothing = replace(site, train=images(noise(60, seed=3)))
    blind, _ = attack.attack(observed, fedavg.known, Truth({"a": nothing}))
    assert not blind.scores["AUC"].leaks


def test_an_update_gives_its_own_images_away_and_a_random_one_does_not(fedavg: Audited) -> None:
    one, members = fedavg.observed.first, noise(8, seed=4)
    own = fedavg.known.reply(members, one, batch_size=8, local_steps=2, local_epochs=None)
    others = [
        fedavg.known.reply(noise(8, seed=n), one, batch_size=8, local_steps=2, local_epochs=None) for n in (5, 6, 7)
    ]
    there = {f"client {n}": replace(one, state=reply.state) for n, reply in enumerate([own, *others])}
    held = noise(8, seed=8)
    scores = [standing(cosines(images, there, fedavg.known), 0) for images in (members, held)]
    assert auc(*(s.numpy() for s in scores)).value > 0.8
    rng = torch.Generator().manual_seed(0)
    random = {
        name: replace(
            e,
            state={
                k: v + 0.01 * torch.randn(v.shape, generator=rng)
                for k, v in e.received.items()
                if v.is_floating_point()
            },
        )
        for name, e in there.items()
    }
    blind = [standing(cosines(noise(40, seed=s), random, fedavg.known), 0) for s in (9, 10)]
    assert not auc(*(s.numpy() for s in blind)).leaks


def test_membership_from_updates_over_the_recorded_rounds(fedavg: Audited) -> None:
    (found,) = UpdateMembership(images=20).attack(fedavg.observed, fedavg.known, fedavg.truth)
    assert found.real and "rounds 1, 2" in found.saw and 0 <= found.scores["AUC"].value <= 1


# --- statistics ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["stablefdg", "ccst", "fisc", "fedccrl"])
def test_the_style_of_one_image_names_it(method: str, tmp_path: Path) -> None:
    made = audited(method, tmp_path, effort=0.2)
    attack = StyleMatching(behind=(1, 16), trials=20)
    assert attack.fits(made.observed, made.known)
    found = attack.attack(made.observed, made.known, made.truth)
    of_one = next(f for f in found if "1 image behind" in f.attack)
    assert of_one.identified_of_100 is not None and of_one.identified_of_100.value == 100.0
    handed = method != "fisc"  # which hands on the middle of all styles alone
    assert {f.plays for f in found} == ({"coordinator", "site"} if handed else {"coordinator"})


def test_styles_of_single_images_do_not_hide_in_a_crowd(tmp_path: Path) -> None:
    made = audited(CCST(bank="single"), tmp_path, effort=0.2)
    _, many, *_ = StyleMatching(behind=(16,), trials=20).attack(made.observed, made.known, made.truth)
    assert many.identified_of_100 is not None and many.identified_of_100.value == 100.0


def test_a_decoder_wins_where_the_style_is_the_image_and_not_for_random_vectors() -> None:
    """Images that are a fixed map of eight numbers; the decoder has seen other images of the same map."""
    rng = torch.Generator().manual_seed(0)
    styles, patterns = torch.rand(356, 8, generator=rng), torch.randn(8, 3 * 8 * 8, generator=rng)
    images = (0.5 + 0.15 * (styles - 0.5) @ patterns).clamp(0, 1).view(-1, 3, 8, 8)
    decode = decoder_of(styles[100:], images[100:], seed=0)
    found = likeness(decode(styles[:100]), images[:100]).argmax(1)
    assert (found == torch.arange(100)).float().mean() > 0.95
    random = likeness(decode(torch.rand(2000, 8, generator=rng)), images[:100]).argmax(1)
    assert not proportion(int((random == torch.arange(2000) % 100).sum()), 2000, 0.01).leaks


def colours(count: int, seed: int) -> TensorImages:
    """Images of a corner and a rest, each of its own colour."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 3, 1, 1, generator=rng).expand(-1, -1, 32, 32).clone()
    x[:, :, :16, :16] = torch.rand(count, 3, 1, 1, generator=rng)
    return TensorImages(x, torch.arange(count) % 3, torch.zeros(count, dtype=torch.long))


@pytest.mark.parametrize("method", ["stablefdg", "ccst"])
def test_styles_are_decoded_to_images_and_fewer_of_them_with_more_behind_a_vector(method: str, tmp_path: Path) -> None:
    made = audited(method, tmp_path, effort=0.2)
    sites = {name: replace(site, train=colours(300, seed=1)) for name, site in made.truth.sites.items()}
    known = replace(made.known, public=everything(colours(256, seed=2)))
    attack = StyleDecoder(behind=(1, 16), trials=20)
    assert attack.fits(made.observed, known)
    found = attack.attack(made.observed, known, Truth(sites))
    one, many, *handed = (f.identified_of_100 for f in found)
    assert one is not None and many is not None
    assert one.leaks and one.value > 20 and many.value < one.value
    assert len(handed) == 2 and found[0].pictures["styles-1.png"].shape == (66, 8 * 32, 3)


def test_the_images_behind_a_vector_have_the_candidate_among_them(fedavg: Audited) -> None:
    game = Game.of("a", 4, 3, fedavg.truth)
    for trial, group in enumerate(game.groups(3)):
        assert len(group) == 3 or not len(game.others)
        assert torch.equal(group.x[0], game.candidates.x[trial])


def test_amplitude_and_phase_give_the_image_back_exactly() -> None:
    image = torch.rand(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spectrum = torch.fft.fftshift(torch.fft.fft2(image), dim=(-2, -1))
    assert torch.allclose(from_amplitude_and_phase(spectrum.abs(), spectrum.angle()), image, atol=1e-12)


def test_phase_retrieval_ends_at_an_image_with_these_amplitudes() -> None:
    image = random_images(1).x
    sent = amplitudes_of(image, 7)
    found = retrieve(sent, torch.rand(image.shape, generator=torch.Generator().manual_seed(0)), 200)
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    assert float((amplitudes_of(found, 7) - sent).norm() / sent.norm()) < 0.02


def test_spectra_name_their_images(tmp_path: Path) -> None:
    made = audited("elcfs", tmp_path)
    attack = SpectrumMatching(iterations=20)
    matching, retrieval, *handed = attack.attack(made.observed, made.known, made.truth)
    assert matching.real and matching.identified_of_100 is not None and matching.identified_of_100.value == 100.0
    assert retrieval.identified_of_100 is not None and [f.plays for f in handed] == ["site", "site"]
    assert "spectra.png" in retrieval.pictures


def test_told_counts_are_read(tmp_path: Path) -> None:
    made = audited("fedproto", tmp_path)
    (found,) = ToldClasses().attack(made.observed, made.known, made.truth)
    assert found.scores["images counted right"].value > 0.8
    assert found.scores["classes told right (there or not)"].value == 1.0


def test_a_told_gradient_of_the_head_tells_the_counts(tmp_path: Path) -> None:
    """A site with one class, and a model that answers alike for all images: the gradient holds the shares."""
    made = audited("fediir", tmp_path)
    one = made.observed.first
    assert ToldClasses().fits(made.observed, made.known)
    only = rows_of(everything(random_images(48)), random_images(48).y == 1)
    site = replace(made.truth.sites[one.client], train=TensorImages(only.x, only.y, only.domain))
    told = replace(one, survey=made.known.reply(only, one, kind="survey").report)
    (found,) = ToldClasses().attack(Observed((told,)), made.known, Truth({one.client: site}))
    assert found.scores["images counted right"].value > 0.9 and found.scores["images counted right"].chance == 1 / 3


def test_a_generator_is_found_by_what_crossed(tmp_path: Path) -> None:
    made = audited("fedadg", tmp_path)
    attack = GeneratorDistance(images=20, samples=32)
    assert attack.fits(made.observed, made.known)
    (found,) = attack.attack(made.observed, made.known, made.truth)
    assert 0 <= found.scores["AUC"].value <= 1
    # Samples that are the members' own features, learnt by heart: every member is nearer than any other image.
    members, others = noise(20, seed=1), noise(20, seed=2)
    with torch.no_grad():
        samples = made.known.net.features(members.x)
    one, two = (-attack._distance(made.known, images, samples) for images in (members, others))
    assert membership_scores(one.numpy(), two.numpy())["AUC"].value > 0.95


# --- domain ----------------------------------------------------------------------------------------------------------
def test_kinds_by_hand() -> None:
    common = torch.tensor([5.0, 5.0, 5.0])
    simulated_kinds = torch.eye(3) + common
    assert kinds_of(0.3 * torch.eye(3)[[2, 0, 1]] + common, simulated_kinds).tolist() == [2, 0, 1]


def test_which_site_an_update_is_from(fedavg: Audited) -> None:
    """Three sites with images of different brightness: their updates tell them apart."""
    sites = {}
    for number, (name, site) in enumerate(fedavg.truth.sites.items()):
        shade = 0.3 + 0.35 * number
        dim = [replace(images, x=images.x * shade) for images in (site.train, site.validation)]  # type: ignore[type-var]
        sites[name] = replace(site, train=dim[0], validation=dim[1])
    exchanges = []
    for one in fedavg.observed.exchanges[:3]:
        reply = fedavg.known.reply(everything(sites[one.client].train), one, local_steps=4, local_epochs=None)
        exchanges.append(replace(one, state=reply.state))
    (found,) = DomainOfUpdate(images=12).attack(Observed(tuple(exchanges)), fedavg.known, Truth(sites))
    assert found.scores["sites told right"].value == 1.0


def test_attacks_fit_what_crossed_and_no_more(fedavg: Audited) -> None:
    for attack in (StyleMatching(), StyleDecoder(), SpectrumMatching(), ToldClasses(), GeneratorDistance()):
        assert not attack.fits(fedavg.observed, fedavg.known)
    for attack in (HeadFeatures(), LabelCounts(), GradientMatching(), FinalModelMembership(), UpdateMembership()):
        assert attack.fits(fedavg.observed, fedavg.known)


def test_a_head_that_goes_up_as_a_row_is_attacked_too(tmp_path: Path) -> None:
    made = audited("copa", tmp_path, effort=0.2)
    assert "head.bias" not in made.observed.first.state
    (one,) = HeadFeatures(batches=(1,)).attack(made.observed, made.known, made.truth)
    assert one.identified_of_100 is not None and one.identified_of_100.value > 50
    counts = LabelCounts(batch=8).attack(made.observed, made.known, made.truth)
    assert [(f.plays, f.real) for f in counts] == [("coordinator", False), ("coordinator", True), ("site", True)]
