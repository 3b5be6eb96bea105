"""Batched augmentation: the same generator gives the same bits, and each operation has a known answer."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.data import augment as room
from unseen.data.augment import PRESETS, Recipe, apply, augment


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 11, height: int = 12, width: int = 12) -> Tensor:
    x = torch.rand(count, height, width, 3, generator=generator(99))
    return x.permute(0, 3, 1, 2)  # channels last in memory, as the store gives them


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_keep_shape_range_layout_and_the_input(preset: str) -> None:
    x = images()
    before = x.clone()
    out = augment(x, preset, generator())
    assert out.shape == x.shape and out.dtype == x.dtype
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert float(out.min()) >= 0 and float(out.max()) <= 1
    assert torch.equal(x, before)
    assert (preset == "none") == torch.equal(out, x)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_generator_gives_the_same_bits(preset: str) -> None:
    x = images()
    assert torch.equal(augment(x, preset, generator(5)), augment(x, preset, generator(5)))
    assert torch.equal(augment(x.contiguous(), preset, generator(5)), augment(x, preset, generator(5)))


def test_nothing_to_do_returns_the_batch_itself_and_draws_nothing() -> None:
    x, rng = images(), generator()
    state = rng.get_state()
    assert augment(x, "none", rng) is x
    assert torch.equal(rng.get_state(), state)


def test_other_draws_give_other_images_and_images_differ_in_their_draws() -> None:
    x = images(1).expand(8, -1, -1, -1)
    out = augment(x, "domainbed", generator(1))
    assert len({tuple(image.flatten().tolist()) for image in out}) == 8
    assert not torch.equal(out, augment(x, "domainbed", generator(2)))


def test_the_number_of_images_worked_on_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images()
    whole = augment(x, "domainbed", generator())
    monkeypatch.setattr(room, "_CHUNK", 3 * 3 * 12 * 12)  # three images
    torch.testing.assert_close(augment(x, "domainbed", generator()), whole, rtol=0, atol=1e-6)


def test_a_sure_flip_is_the_mirror_image() -> None:
    x = images()
    torch.testing.assert_close(apply(x, Recipe(flip=1.0), generator()), x.flip(3), rtol=0, atol=1e-5)


def test_half_of_the_images_are_flipped() -> None:
    x = torch.linspace(0, 1, 8)[None, None, None, :].expand(2000, 3, 8, 8)
    flipped = apply(x, Recipe(flip=0.5), generator())[:, 0, 0, 0] > 0.5
    assert 0.45 < float(flipped.float().mean()) < 0.55


def test_grey_is_the_luma_in_all_channels() -> None:
    x = images()
    out = apply(x, Recipe(grey=1.0), generator())
    luma = 0.2989 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    for channel in range(3):
        torch.testing.assert_close(out[:, channel], luma)


def test_some_images_lose_their_colour_and_the_others_stay_as_they_are() -> None:
    x = images(400, 4, 4)
    out = apply(x, Recipe(grey=0.1), generator())
    lost = (out[:, 0] == out[:, 1]).all(dim=2).all(dim=1)
    assert 20 < int(lost.sum()) < 65
    assert torch.equal(out[~lost], x[~lost])


def test_a_crop_is_a_box_of_the_image() -> None:
    # A picture whose red is its column and green its row: every crop shows where it was cut.
    side = 32
    place = (torch.arange(side) + 0.5) / side
    x = torch.stack([place.expand(side, side), place[:, None].expand(side, side), torch.zeros(side, side)])
    out = apply(x.expand(300, -1, -1, -1), Recipe(crop=(0.5, 1.0)), generator())
    inner = slice(4, -4)  # away from the border, which is repeated
    steps_x = (out[:, 0, 16, inner].diff(dim=1)).mean(dim=1) * side
    steps_y = (out[:, 1, inner, 16].diff(dim=1)).mean(dim=1) * side
    area, ratio = steps_x * steps_y, steps_x / steps_y
    assert 0.49 < float(area.min()) < 0.55 and 0.9 < float(area.max()) <= 1.001
    assert float(ratio.min()) > 0.74 and float(ratio.max()) < 1.34


def test_dassl_enlarges_half_of_the_images_by_an_eighth() -> None:
    side = 32
    place = (torch.arange(side) + 0.5) / side
    x = place.expand(1, 3, side, side).expand(400, -1, -1, -1)
    out = apply(x, Recipe(zoom_crop=1.125), generator())
    steps = out[:, 0, 0, 4:-4].diff(dim=1).mean(dim=1) * side
    near = torch.stack([(steps - 1).abs() < 1e-3, (steps - 1 / 1.125).abs() < 1e-3])
    assert bool(near.any(dim=0).all())
    assert 160 < int(near[1].sum()) < 240


def test_a_shift_moves_by_at_most_its_part_and_repeats_the_border() -> None:
    x = torch.zeros(200, 3, 16, 16)
    x[:, :, 8, 8] = 1
    x[:, :, 0, :] = 0.5
    out = apply(x, Recipe(shift=0.125), generator())
    column = out[:, 0, 4:12].sum(dim=1).argmax(dim=1)
    assert int(column.min()) == 6 and int(column.max()) == 10
    assert float(out[:, 0, 0].max()) <= 0.5 + 1e-5


def fixed(name: str, amount: float, x: Tensor) -> Tensor:
    """One colour operation with a given amount for all images."""
    planes = x.clone(memory_format=torch.contiguous_format)
    room._COLOURS[name](planes, torch.full((len(x),), amount))
    return planes


def test_brightness_contrast_and_saturation_by_hand() -> None:
    x = images(3, 5, 4)
    pixels = x.numpy().astype(np.float64)
    luma = 0.2989 * pixels[:, 0] + 0.587 * pixels[:, 1] + 0.114 * pixels[:, 2]
    mean = luma.mean(axis=(1, 2))
    by_hand = {
        "brightness": np.clip(1.3 * pixels, 0, 1),
        "contrast": np.clip(1.3 * pixels - 0.3 * mean[:, None, None, None], 0, 1),
        "saturation": np.clip(1.3 * pixels - 0.3 * luma[:, None], 0, 1),
    }
    for name, expected in by_hand.items():
        np.testing.assert_allclose(fixed(name, 1.3, x).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("turn", [-0.4, 0.0, 0.1, 0.5])
def test_hue_turns_as_hsv_says(turn: float) -> None:
    x = images(2, 6, 6)
    x[0, :, 0, 0] = 0.4  # a grey pixel has no hue
    x[0, :, 0, 1] = torch.tensor([1.0, 0.0, 0.0])
    out = fixed("hue", turn, x)
    for b in range(2):
        for i in range(6):
            for j in range(6):
                hue, saturation, value = colorsys.rgb_to_hsv(*x[b, :, i, j].tolist())
                expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
                np.testing.assert_allclose(out[b, :, i, j].numpy(), expected, atol=1e-5)


def test_amounts_are_drawn_from_the_stated_ranges() -> None:
    recipe = Recipe(brightness=0.3, contrast=0.4, saturation=0.2, hue=0.1)
    drawn = dict(room._draw_jitter(5000, recipe, generator()))
    assert set(drawn) == {"brightness", "contrast", "saturation", "hue"}
    for name, low, high in [
        ("brightness", 0.7, 1.3),
        ("contrast", 0.6, 1.4),
        ("saturation", 0.8, 1.2),
        ("hue", -0.1, 0.1),
    ]:
        assert low <= float(drawn[name].min()) < low + 0.01
        assert high - 0.01 < float(drawn[name].max()) <= high


def test_the_order_of_the_colours_is_drawn() -> None:
    recipe = Recipe(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.3)
    orders = {tuple(name for name, _ in room._draw_jitter(2, recipe, generator(seed))) for seed in range(200)}
    assert len(orders) == 24


def test_with_a_chance_of_a_half_half_of_the_images_keep_their_colours() -> None:
    recipe = Recipe(brightness=0.2, hue=0.2, jitter_chance=0.5)
    drawn = dict(room._draw_jitter(2000, recipe, generator()))
    spared = drawn["brightness"] == 1
    assert 900 < int(spared.sum()) < 1100
    assert torch.equal(spared, drawn["hue"] == 0)


def test_images_need_not_be_square() -> None:
    x = images(4, 10, 14)
    assert augment(x, "domainbed", generator()).shape == x.shape


def test_a_batch_of_nothing_stays_nothing() -> None:
    assert augment(images(4)[:0], "domainbed", generator()).shape == (0, 3, 12, 12)


def test_an_unknown_preset_is_told_the_nearest() -> None:
    with pytest.raises(UserError, match=r'no augmentation "domainbad".*"domainbed"'):
        augment(images(), "domainbad", generator())


def test_presets_are_the_papers() -> None:
    bed, jigen, adg = PRESETS["domainbed"], PRESETS["jigen"], PRESETS["fedadg"]
    assert (bed.crop, bed.flip, bed.brightness, bed.hue, bed.grey) == ((0.7, 1.0), 0.5, 0.3, 0.3, 0.1)
    assert (jigen.crop, jigen.flip, jigen.brightness, jigen.hue, jigen.grey) == ((0.8, 1.0), 0.5, 0.4, 0.4, 0.1)
    assert (adg.crop, adg.flip, adg.brightness, adg.grey) == ((0.7, 1.0), 0.5, 0.0, 0.1)
    assert PRESETS["gperxan"].crop is None and PRESETS["dassl"].zoom_crop == 1.125
    assert all(recipe.source for recipe in PRESETS.values())
