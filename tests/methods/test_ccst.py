from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.tiny_federation import federation
from tests.tiny_work import make_work, site, tiny_net
from unseen.core.errors import UserError
from unseen.core.files import write_tensors
from unseen.core.types import Server
from unseen.methods.ccst import CCST
from unseen.nets.parts.style_transfer import Restyle, StyleNetwork, kept_copies, looks_of, overall, style_network, take
from unseen.nets.parts.styles import style_of
from unseen.registry import parse


def test_overall_style_by_hand() -> None:
    maps = np.random.default_rng(0).normal(size=(5, 3, 4, 4)) * 2 + 1
    got = overall(style_of(torch.tensor(maps), 1e-5))
    assert got.shape == (1, 2, 3)
    np.testing.assert_allclose(got[0, 0].numpy(), maps.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(got[0, 1].numpy(), np.sqrt(maps.var((0, 2, 3)) + 1e-5), rtol=1e-5)


def test_maps_take_the_style_of_the_bank_by_hand() -> None:
    module = Restyle(share=1.0)
    module.bank = torch.tensor([[[1.0, -2.0], [0.5, 3.0]]])
    maps = np.random.default_rng(1).normal(size=(4, 2, 5, 5)) * 0.003  # so small that AdaIN's epsilon, 1e-5, is seen
    mean, std = maps.mean((2, 3), keepdims=True), np.sqrt(maps.var((2, 3), keepdims=True) + 1e-5)
    expected = (maps - mean) / std * np.array([0.5, 3.0])[:, None, None] + np.array([1.0, -2.0])[:, None, None]
    np.testing.assert_allclose(module(torch.tensor(maps)).numpy(), expected, rtol=1e-5, atol=1e-5)
    module.eval()
    assert module(torch.ones(1)) is not None and torch.equal(module(torch.ones(1)), torch.ones(1))


def test_images_keep_their_style_once_in_k_plus_one_times() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, given = take(torch.zeros(3, 2, 4), 4000, 3 / 4, rng)
    assert 2900 < len(rows) < 3100 and given.shape == (len(rows), 2, 4)
    module = Restyle(share=0.0)
    module.bank = torch.ones(1, 2, 3)
    maps = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(module(maps), maps)


def test_survey_and_brief() -> None:
    method = CCST(bank="single", singles=5)
    work = make_work(method)
    work.net.eval()
    with torch.no_grad():
        statistics = method.survey(work)["styles"]
        every = CCST().survey(work)["styles"]
        own = overall(style_of(work.net.run_stage(0, work.site.train.batch(torch.arange(32)).x), 1e-5))
    assert statistics.shape == (5, 2, 8) and every.shape == (1, 2, 8)
    torch.testing.assert_close(every, own)
    server = Server({})
    notes = method.brief(server, {"a": {"styles": statistics}, "b": {"styles": statistics + 1}}, ["a", "b"])
    assert torch.equal(notes["a"]["styles"], statistics + 1) and torch.equal(notes["b"]["styles"], statistics)
    assert method.brief(Server({}), {"a": {"styles": statistics}}, ["a"]) == {}


def test_the_next_client_does_not_find_the_banks_of_the_last() -> None:
    method = CCST()
    net = tiny_net(method)
    (module,) = net.norms(Restyle)
    method.prepare(make_work(method, net=net, brief={"styles": torch.ones(2, 2, 8)}))
    assert module.bank is not None
    method.prepare(make_work(method, net=net))
    assert module.bank is None
    assert set(net.state_dict()) == set(tiny_net(CCST()).state_dict())


def test_the_style_network_by_hand() -> None:
    """AdaIN between encoder and decoder: the image's own standard deviation has the epsilon 1e-5."""
    network = StyleNetwork()
    network.encoder, network.decoder = torch.nn.Sequential(), torch.nn.Sequential()
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 4)) * 0.003
    mean, std = np.array([[0.1, 0.2, 0.3]] * 2), np.array([[1.0, 2.0, 3.0]] * 2)
    own = np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
    expected = (x - x.mean((2, 3), keepdims=True)) / own * std[:, :, None, None] + mean[:, :, None, None]
    got = network(*(torch.tensor(value) for value in (x, mean, std)))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A style network of random weights, as files."""
    torch.manual_seed(0)
    network = StyleNetwork()
    paths = [tmp_path / name for name in ("vgg.safetensors", "decoder.safetensors")]
    extra = {"31.weight": torch.zeros(1)}  # the published encoder goes on
    write_tensors(paths[0], network.encoder.state_dict() | extra)
    write_tensors(paths[1], network.decoder.state_dict())
    return str(paths[0]), str(paths[1])


def test_style_network_from_files(files: tuple[str, str]) -> None:
    network = style_network(*files)
    names = [key for key in network.encoder.state_dict() if key.endswith("weight")]
    assert names == [f"{i}.weight" for i in (0, 2, 5, 9, 12, 16, 19, 22, 25, 29)]  # as published
    names = [key for key in network.decoder.state_dict() if key.endswith("weight")]
    assert names == [f"{i}.weight" for i in (1, 5, 8, 11, 14, 18, 21, 25, 28)]
    write_tensors(Path(files[1]), {"1.weight": torch.zeros(2)})
    style_network.cache_clear()
    with pytest.raises(UserError, match="does not fit"):
        CCST(encoder=files[0], decoder=files[1]).build(tiny_net(CCST()))


@pytest.mark.parametrize(("counts", "most", "kinds"), [([1, 1], 3, 3), ([4, 2], 2, 2), ([1], 5, 2), ([3] * 29, 3, 3)])
def test_an_image_has_the_looks_of_k_clients_its_own_among_them(counts: list[int], most: int, kinds: int) -> None:
    """Clients are drawn without replacement; its own stands for the image as it is; of the others one style each."""
    rng = torch.Generator().manual_seed(0)
    looks = looks_of(torch.tensor(counts), 4000, most, rng).numpy()
    assert looks.shape == (4000, kinds)
    client = np.concatenate([np.repeat(np.arange(len(counts)), counts), [-1]])[looks]  # -1: as it is
    assert all(len(set(row)) == kinds for row in client)
    for each in range(-1, len(counts)):  # every client as often as any other
        assert abs((client == each).mean() - 1 / (len(counts) + 1)) < 0.02
    assert set(looks.ravel()) == set(range(-1, sum(counts)))  # and every style of each
    for each, (first, held) in enumerate(zip(np.cumsum(counts) - counts, counts, strict=True)):
        of = np.bincount(looks[client == each] - first, minlength=held)
        assert of.min() > 0.6 * of.mean()


def test_with_three_clients_an_image_is_seen_once_in_each_look_as_in_the_papers_table() -> None:
    """Overall, K = 3 on PACS: the image as it is, and in the two other domains' styles, each a third of the times."""
    looks = looks_of(torch.tensor([1, 1]), 50, CCST().copies, torch.Generator().manual_seed(0))
    assert (looks.sort(dim=1).values == torch.tensor([-1, 0, 1])).all()


def test_with_a_style_network_images_are_drawn_in_their_looks(files: tuple[str, str]) -> None:
    method = CCST(encoder=files[0], decoder=files[1], side=0)
    assert [method.surveys(round) for round in (1, 2)] == [True, False]
    told = {name: {"styles": torch.full((1, 2, 512), value)} for name, value in (("a", 0.5), ("b", 1.0), ("c", 2.0))}
    brief = method.brief(Server({}), told, ["a"])["a"]
    assert brief["styles"][:, 0, 0].tolist() == [1.0, 2.0] and brief["counts"].tolist() == [1, 1]
    work = make_work(method, brief=brief, site=site(count=6))
    assert not work.net.norms(Restyle)
    own = work.site.train
    method.prepare(work)
    images = work.site.train
    assert len(images) == 6 and torch.equal(images.labels, own.labels) and torch.equal(images.domains, own.domains)
    rows = torch.arange(6)
    plain = own.batch(rows).x
    seen: list[dict[bytes, int]] = [{} for _ in rows]
    for _ in range(60):
        drawn = images.batch(rows)
        assert torch.equal(drawn.y, own.labels) and float(drawn.x.min()) >= 0 and float(drawn.x.max()) <= 1
        for row, x in enumerate(drawn.x):
            key = x.numpy().tobytes()
            seen[row][key] = seen[row].get(key, 0) + 1
    with torch.no_grad():
        for row, kinds in enumerate(seen):
            copies = [
                style_network(*files)(plain[row : row + 1], *style[:, None]).clamp(0, 1) for style in brief["styles"]
            ]
            expected = [plain[row], *((new[0] * 255).round() / 255 for new in copies)]
            assert set(kinds) == {x.numpy().tobytes() for x in expected} and min(kinds.values()) > 8


def test_copies_have_the_same_bits_made_before_or_anew(files: tuple[str, str]) -> None:
    def drawn() -> Tensor:
        method = CCST(encoder=files[0], decoder=files[1], side=0)
        work = make_work(
            method, brief={"styles": torch.ones(1, 2, 512), "counts": torch.tensor([1])}, site=site(count=8)
        )
        method.prepare(work)
        work.rng.manual_seed(4)
        return work.site.train.batch(torch.tensor([5, 2, 7])).x

    first, again = drawn(), drawn()
    kept_copies.cache_clear()
    assert torch.equal(first, again) and torch.equal(first, drawn())


def test_in_company_the_loop_still_gets_the_copies(files: tuple[str, str], tmp_path: Path) -> None:
    fields = {"encoder": files[0], "decoder": files[1], "side": 0}
    fed = federation(parse("ccst+guide", fields), tmp_path, rounds=2, local_steps=1)
    (first, _) = fed.run()
    assert not first.refused and kept_copies(*files, 32)._kept


SHARED = Path(__file__).parents[3] / "shared"
WEIGHTS, PACS = SHARED / "weights", SHARED / "data" / "PACS"


@pytest.mark.skipif(
    not (WEIGHTS / "adain_encoder.safetensors").exists(), reason="AdaIN's files are not on this machine"
)
@pytest.mark.skipif(not PACS.exists(), reason="PACS is not on this machine")
def test_the_published_network_gives_an_image_the_style_and_leaves_its_content() -> None:
    def photo(name: str) -> Tensor:
        picture = Image.open(sorted((PACS / name).rglob("*.jpg"))[0]).convert("RGB").resize((224, 224))
        return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float() / 255

    network = style_network(str(WEIGHTS / "adain_encoder.safetensors"), str(WEIGHTS / "adain_decoder.safetensors"))
    x, other = photo("photo/dog"), photo("sketch/house")
    with torch.no_grad():
        wanted = style_of(network.encoder(other), 1e-5)
        new = network(x, *wanted).clamp(0, 1)
        before, after = (style_of(network.encoder(image), 1e-5) for image in (x, new))
        assert (after.mean - wanted.mean).norm() < 0.5 * (before.mean - wanted.mean).norm()
        assert (after.std - wanted.std).norm() < 0.5 * (before.std - wanted.std).norm()
        same = network(x, *before).clamp(0, 1)  # in its own style it is decoded nearly as it was

    def alike(one: Tensor, two: Tensor) -> float:
        return float(torch.corrcoef(torch.stack([one.mean(1).flatten(), two.mean(1).flatten()]))[0, 1])

    # At 96 px it is coarse: 0.49 to 0.87 on four photos, where 224 px have 0.74 to 0.95.
    assert alike(same, x) > 0.7 and alike(same, x) > 3 * abs(alike(same, photo("photo/house")))
    assert float(new.std(1).mean()) < 0.5 * float(x.std(1).mean())  # a sketch has no colours


def test_only_the_authors_network_at_their_size_has_no_remark() -> None:
    files = {"encoder": "e.safetensors", "decoder": "d.safetensors"}
    assert CCST().about.remark == "weight-free, ours"
    assert CCST(**files).about.remark == ""
    assert CCST(**files, side=224).about.remark == "restyled at 224 px"
    assert CCST(**files, side=0).about.remark == "restyled at the image size"
    with pytest.raises(UserError, match="at least 32 px"):
        tiny_net(CCST(side=8))


def test_images_are_enlarged_to_be_restyled_and_come_back_at_their_size(files: tuple[str, str]) -> None:
    method = CCST(encoder=files[0], decoder=files[1], side=48)
    work = make_work(method, brief={"styles": torch.ones(1, 2, 512), "counts": torch.tensor([1])}, site=site(count=4))
    method.prepare(work)
    assert work.site.train.batch(torch.arange(4)).x.shape == (4, 3, 32, 32)
    work.net.eval()
    with torch.no_grad():
        assert method._maps(work, torch.rand(1, 3, 32, 32)).shape == (1, 512, 6, 6)


def test_no_looks_at_all_are_an_error() -> None:
    with pytest.raises(UserError, match="copies is 0"):
        CCST(copies=0)


def test_one_file_of_two_is_an_error() -> None:
    with pytest.raises(UserError, match="two files"):
        tiny_net(CCST(encoder="vgg.safetensors"))


def test_through_the_real_loop(tmp_path: Path) -> None:
    fed = federation("ccst", tmp_path, rounds=2, local_steps=1)
    fed.run()
    assert {client: tuple(value.shape) for client, value in fed.server.memory.items()} == dict.fromkeys(
        "abc", (1, 2, 8)
    )
    assert fed.net.norms(Restyle)[0].bank is not None
