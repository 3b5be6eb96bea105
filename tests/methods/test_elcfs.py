from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work, random_images
from unseen.core.types import Server
from unseen.federation.client_state import ClientStates
from unseen.methods.elcfs import ELCFS
from unseen.nets.parts.spectra import low_amplitudes, with_amplitudes


def numpy_mix(image: np.ndarray, given: np.ndarray, share: float, reach: int) -> np.ndarray:
    """One colour of one image, all by NumPy's FFT and its own shift."""
    spectrum = np.fft.fft2(image)
    amplitude, phase = np.fft.fftshift(np.abs(spectrum)), np.angle(spectrum)
    middle = image.shape[0] // 2
    window = slice(middle - reach, middle + reach + 1)
    amplitude[window, window] = (1 - share) * amplitude[window, window] + share * given
    return np.clip(np.real(np.fft.ifft2(np.fft.ifftshift(amplitude) * np.exp(1j * phase))), 0, 1)


def test_mixed_amplitudes_by_hand() -> None:
    images, others = random_images(2, seed=1).x, random_images(2, seed=2).x
    given = low_amplitudes(others, 0.1)
    assert given.shape == (2, 3, 7, 7)  # 32 px: up to 3 waves each way
    got = with_amplitudes(images, given, torch.tensor([0.3, 1.0]), 0.1)
    for i, share in enumerate((0.3, 1.0)):
        for colour in range(3):
            theirs = np.fft.fftshift(np.abs(np.fft.fft2(others[i, colour].double().numpy())))[13:20, 13:20]
            expected = numpy_mix(images[i, colour].double().numpy(), theirs, share, 3)
            np.testing.assert_allclose(got[i, colour].numpy(), expected, atol=1e-5)


def test_share_zero_is_the_image_and_size_zero_the_mean_colour() -> None:
    images, others = random_images(2, seed=1).x, random_images(2, seed=2).x
    same = with_amplitudes(images, low_amplitudes(others, 0.1), torch.zeros(2), 0.1)
    torch.testing.assert_close(same, images, rtol=0, atol=1e-5)
    given = low_amplitudes(others, 0.0)
    np.testing.assert_allclose(given[..., 0, 0].numpy(), others.sum((2, 3)).numpy(), rtol=1e-4)


def test_a_step_is_along_the_inner_and_the_outer_gradient() -> None:
    method = ELCFS(inner_rate=0.5)
    bank = {"b": low_amplitudes(random_images(3, seed=9).x, 0.1)}
    work, images = make_work(method, brief=bank), batch()
    method.prepare(work)
    mixed = method._mixed(work_again(method, bank), images)
    assert mixed is not None and not torch.allclose(mixed.x, images.x)

    reference = make_work(method)
    parameters = list(reference.net.parameters())
    start = [p.detach().clone() for p in parameters]
    inner = torch.autograd.grad(F.cross_entropy(reference.net(images.x), images.y), parameters)
    with torch.no_grad():
        for p, slope in zip(parameters, inner, strict=True):
            p.sub_(0.5 * slope)
    outer = torch.autograd.grad(F.cross_entropy(reference.net(mixed.x), mixed.y), parameters)

    method.step(work, images)
    for p, old, a, b in zip(work.net.parameters(), start, inner, outer, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.05 * (a + b), rtol=1e-4, atol=1e-6)


def work_again(method: ELCFS, bank: dict[str, torch.Tensor]):  # type: ignore[no-untyped-def]
    """The same work with the same dice, before any of them is thrown."""
    work = make_work(method, brief=bank)
    method.prepare(work)
    return work


def test_without_episodes_the_mixed_images_join_the_batch() -> None:
    method = ELCFS(episodic=False)
    work, images = make_work(method, brief={"b": low_amplitudes(random_images(3, seed=9).x, 0.1)}), batch()
    method.prepare(work)
    both = method.augment(work, images)
    assert len(both) == 16 and torch.equal(both.x[:8], images.x) and torch.equal(both.y[8:], images.y)
    alone = make_work(method)
    method.prepare(alone)
    assert method.augment(alone, images) is images


def test_the_bank_travels_once_and_without_ones_own(tmp_path: Path) -> None:
    method = ELCFS()
    assert [method.surveys(round) for round in (1, 2, 3)] == [True, False, False]
    server = Server({})
    statistics = {client: {"amplitudes": torch.full((2, 3, 7, 7), float(i))} for i, client in enumerate("abc")}
    notes = method.brief(server, statistics, ["a", "b", "c"])
    assert {client: set(note) for client, note in notes.items()} == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}
    server.met = {"a", "b", "c"}
    assert method.brief(server, {}, ["a", "b"]) == {}
    assert set(method.brief(server, {}, ["a", "d"])) == {"d"}  # who is new gets it

    fed = federation("elcfs", tmp_path, rounds=2, local_steps=1)
    fed.run()
    _, memory = ClientStates(tmp_path).load("a", 3)
    assert set(memory) == {"bank/b", "bank/c"}
    assert len(memory["bank/b"]) == 4  # an eighth of 32 images
