"""Augmentation of whole batches: every image its own draws, no loop over images.

Images are float in [0, 1], B x 3 x H x W; they come out in the same size and memory layout. Every draw is from the
given generator, on the CPU, so all devices see the same ones. The colour operations are torchvision's definitions,
written for a batch; the order of a colour jitter's four operations is drawn once per batch, where torchvision draws it
per image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.errors import unknown

_LUMA = (0.2989, 0.587, 0.114)  # grey as torchvision weighs it
_CHUNK = 300_000  # numbers worked on at once, on a CPU: with what is made of them, a core's cache
_ATTEMPTS = 10  # draws of a crop before the whole image is taken


@dataclass(frozen=True)
class Recipe:
    """What may happen to an image. The default is nothing."""

    crop: tuple[float, float] | None = None  # random resized crop: smallest and largest part of the area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of the crop: width to height
    zoom_crop: float = 1.0  # Dassl's translation: enlarge by this factor, cut out the old size anywhere
    zoom_crop_chance: float = 0.5
    shift: float = 0.0  # move by up to this part of the side, repeating the border
    flip: float = 0.0  # chance of a mirror image
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0  # part of the colour circle
    jitter_chance: float = 1.0  # chance that an image's colours are jittered at all
    grey: float = 0.0  # chance of losing the colour
    source: str = ""  # where the numbers are from

    @property
    def moves(self) -> bool:
        return self.crop is not None or self.zoom_crop > 1 or self.shift > 0 or self.flip > 0

    @property
    def colours(self) -> bool:
        return max(self.brightness, self.contrast, self.saturation, self.hue) > 0


PRESETS: dict[str, Recipe] = {
    "none": Recipe(source="no augmentation"),
    "domainbed": Recipe(
        crop=(0.7, 1.0),
        flip=0.5,
        brightness=0.3,
        contrast=0.3,
        saturation=0.3,
        hue=0.3,
        grey=0.1,
        source="DomainBed, which FedFD-A builds on",
    ),
    "jigen": Recipe(
        crop=(0.8, 1.0),
        flip=0.5,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        hue=0.4,
        grey=0.1,
        source="JiGen, and CSAC after it",
    ),
    "fedadg": Recipe(crop=(0.7, 1.0), flip=0.5, grey=0.1, source="FedADG's code; its paper says JiGen's"),
    "gperxan": Recipe(
        flip=0.5,
        brightness=0.2,
        contrast=0.2,
        saturation=0.2,
        hue=0.2,
        jitter_chance=0.5,
        source="gPerXAN, section 4.1, which gives no strengths; these are the defaults its code leaves in place",
    ),
    "dassl": Recipe(flip=0.5, zoom_crop=1.125, source="Dassl, which StableFDG builds on"),
    "digits": Recipe(shift=0.0625, source="ours: up to two of 32 px in each direction; a mirrored digit is none"),
}


def augment(x: Tensor, preset: str, rng: torch.Generator) -> Tensor:
    """A batch, augmented by the preset of this name."""
    if preset not in PRESETS:
        raise unknown("augmentation", preset, PRESETS, f"The augmentations are {', '.join(PRESETS)}.")
    return apply(x, PRESETS[preset], rng)


def apply(x: Tensor, recipe: Recipe, rng: torch.Generator) -> Tensor:
    """A batch, augmented by a recipe. `x` itself is left as it is; a recipe of nothing returns it."""
    if not (recipe.moves or recipe.colours or recipe.grey > 0):
        return x
    count = len(x)
    if count == 0:
        return x
    box = _draw_boxes(count, x.shape[-1] / x.shape[-2], recipe, rng) if recipe.moves else None
    jitter = _draw_jitter(count, recipe, rng)
    grey = torch.rand(count, generator=rng) < recipe.grey if recipe.grey > 0 else torch.zeros(count, dtype=torch.bool)
    out = torch.empty_like(x)
    # Colours are mixed plane by plane, a few images at a time: what is worked on stays in a core's cache.
    some = max(1, _CHUNK // x[0].numel()) if x.device.type == "cpu" else count
    for start in range(0, count, some):
        part = slice(start, start + some)
        planes = x[part].clone(memory_format=torch.contiguous_format) if box is None else _cut(x[part], box[:, part])
        for name, amounts in jitter:
            _COLOURS[name](planes, amounts[part].to(planes.device))
        lost = torch.nonzero(grey[part])[:, 0].to(planes.device)
        if len(lost):
            planes[lost] = _luma(planes[lost]).expand(-1, 3, -1, -1)
        out[part].copy_(planes)
    return out


# --- where pixels come from -----------------------------------------------------------------------------------------


def _draw_boxes(count: int, aspect: float, recipe: Recipe, rng: torch.Generator) -> Tensor:
    """Crop, translation and flip are one box per image: one interpolation for all of them.

    Rows: half the width (negative for a mirror image), half the height, centre x, centre y; the image is [-1, 1]^2.
    """
    half_x, half_y = torch.ones(count), torch.ones(count)
    centre_x, centre_y = torch.zeros(count), torch.zeros(count)
    if recipe.crop is not None:
        half_x, half_y = _crop_sides(count, aspect, recipe.crop, recipe.ratio, rng)
        centre_x = (1 - half_x) * _signed(count, rng)
        centre_y = (1 - half_y) * _signed(count, rng)
    if recipe.zoom_crop > 1:
        happens = torch.rand(count, generator=rng) < recipe.zoom_crop_chance
        half = torch.where(happens, 1 / recipe.zoom_crop, 1.0)
        centre_x = centre_x + half_x * (1 - half) * _signed(count, rng)
        centre_y = centre_y + half_y * (1 - half) * _signed(count, rng)
        half_x, half_y = half_x * half, half_y * half
    if recipe.shift > 0:
        centre_x = centre_x + 2 * recipe.shift * _signed(count, rng)
        centre_y = centre_y + 2 * recipe.shift * _signed(count, rng)
    if recipe.flip > 0:
        half_x = torch.where(torch.rand(count, generator=rng) < recipe.flip, -half_x, half_x)
    return torch.stack([half_x, half_y, centre_x, centre_y])


def _signed(count: int, rng: torch.Generator) -> Tensor:
    return 2 * torch.rand(count, generator=rng) - 1


def _centres(count: int, like: Tensor) -> Tensor:
    """Pixel centres in [-1, 1]."""
    return (2 * torch.arange(count, dtype=like.dtype, device=like.device) + 1) / count - 1


def _cut(x: Tensor, box: Tensor) -> Tensor:
    """Each image's own box, stretched to the whole, by bilinear interpolation; planes, whatever the layout of `x`."""
    half_x, half_y, centre_x, centre_y = box.to(x)
    at_x = (centre_x[:, None] + half_x[:, None] * _centres(x.shape[3], x))[:, None, :]
    at_y = (centre_y[:, None] + half_y[:, None] * _centres(x.shape[2], x))[:, :, None]
    # Pairs (x, y) side by side in memory: seen as complex numbers, they are written in one go.
    shape = (len(x), x.shape[2], x.shape[3])
    grid = torch.view_as_real(torch.complex(at_x.expand(shape), at_y.expand(shape)))
    cut = F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return cut.contiguous()


def _crop_sides(
    count: int, aspect: float, area: tuple[float, float], ratio: tuple[float, float], rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Width and height of random resized crops as parts of the image's: the first attempt that fits, as torchvision."""
    part = area[0] + (area[1] - area[0]) * torch.rand(_ATTEMPTS, count, generator=rng)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = torch.exp(low + (high - low) * torch.rand(_ATTEMPTS, count, generator=rng)) / aspect
    width, height = (part * shape).sqrt(), (part / shape).sqrt()
    fits = (width <= 1) & (height <= 1)
    # argmax finds the first True; where there is none, the whole image is taken.
    first = fits.to(torch.uint8).argmax(dim=0, keepdim=True)
    some = fits.any(dim=0)
    return (
        torch.where(some, width.gather(0, first)[0], 1.0),
        torch.where(some, height.gather(0, first)[0], 1.0),
    )


# --- colours --------------------------------------------------------------------------------------------------------


def _draw_jitter(count: int, recipe: Recipe, rng: torch.Generator) -> list[tuple[str, Tensor]]:
    """The colour operations in the order of this batch, each with its amount for every image."""
    amounts: dict[str, Tensor] = {}
    for name in ("brightness", "contrast", "saturation"):
        strength: float = getattr(recipe, name)
        if strength > 0:
            low, high = max(0.0, 1 - strength), 1 + strength
            amounts[name] = low + (high - low) * torch.rand(count, generator=rng)
    if recipe.hue > 0:
        amounts["hue"] = recipe.hue * _signed(count, rng)
    if recipe.jitter_chance < 1:
        spared = torch.rand(count, generator=rng) >= recipe.jitter_chance
        amounts = {n: torch.where(spared, 0.0 if n == "hue" else 1.0, amount) for n, amount in amounts.items()}
    names = list(amounts)
    return [(names[place], amounts[names[place]]) for place in torch.randperm(len(names), generator=rng).tolist()]


def _luma(planes: Tensor) -> Tensor:
    """Grey, B x 1 x H x W."""
    red, green, blue = planes.unbind(1)
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])[:, None]


def _brighten(planes: Tensor, factor: Tensor) -> None:
    planes.mul_(factor[:, None, None, None]).clamp_(0, 1)


def _contrast(planes: Tensor, factor: Tensor) -> None:
    """Away from (or towards) the image's mean grey."""
    factor = factor[:, None, None, None]
    anchor = _luma(planes).mean(dim=(2, 3), keepdim=True)
    planes.mul_(factor).add_(anchor * (1 - factor)).clamp_(0, 1)


def _saturate(planes: Tensor, factor: Tensor) -> None:
    """Away from (or towards) each pixel's grey."""
    factor = factor[:, None, None, None]
    anchor = _luma(planes).mul_(1 - factor)
    planes.mul_(factor).add_(anchor).clamp_(0, 1)


def _turn_hue(planes: Tensor, turn: Tensor) -> None:
    """Turn each image's colours around the hexagon of HSV by `turn` (1 is all the way round).

    Turning the hue keeps a pixel's largest and smallest channel, so HSV is never built: only the hue is.
    """
    red, green, blue = planes.unbind(1)
    others = torch.maximum(green, blue)
    top = torch.maximum(red, others)
    chroma = top - torch.minimum(torch.minimum(red, green), blue)
    sixth = chroma.clamp(min=1e-12).reciprocal_().div_(6)  # a grey pixel has chroma 0: any hue gives it back
    # Which channel is the largest, as 0 or 1, without a branch: comparing and choosing are slow, arithmetic is not.
    # Where two are equal, both ways of computing the hue agree.
    is_red = (red - others).mul_(1e30).clamp_(0, 1)
    from_red = green - blue
    is_green = (from_red * 1e30).clamp_(0, 1)
    from_blue = torch.addcmul(planes.new_tensor(4 / 6), red - green, sixth)
    from_green = torch.addcmul(planes.new_tensor(2 / 6), blue - red, sixth)
    hue = torch.lerp(torch.lerp(from_blue, from_green, is_green), from_red.mul_(sixth), is_red)
    hue.add_(turn[:, None, None])
    # How far each channel is below the top, in parts of the chroma: a trapezoid around the circle. It is 0 within a
    # sixth of the channel's own colour, 1 beyond a third, and the opposite colour is half a circle away.
    opposite = planes.new_tensor([1 / 2, 1 / 6, -1 / 6])[:, None, None]
    away = hue[:, None] + opposite
    away.sub_(away.round()).abs_()
    below = torch.rsub(away, 2, alpha=6).clamp_(0, 1)
    torch.addcmul(top[:, None], chroma[:, None], below, value=-1, out=planes)


_COLOURS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "brightness": _brighten,
    "contrast": _contrast,
    "saturation": _saturate,
    "hue": _turn_hue,
}
