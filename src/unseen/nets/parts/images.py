"""Changes of whole batches of images in [0, 1] that methods make: RandAugment's operations, random convolutions, tiles.

Every draw is from the given generator, on the CPU, so all devices see the same ones. An operation of RandAugment takes
images and signed strengths from -1 to 1, one for each image or one for all; those without a direction look at its size
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Operation = Callable[[Tensor, Tensor], Tensor]

LUMA = (0.299, 0.587, 0.114)
LEVELS = 255
SHEAR, SHIFT, TURN, ENHANCE = 0.3, 150 / 331, math.radians(30), 0.9  # at strength 1; of AutoAugment, by torchvision


# --- RandAugment -----------------------------------------------------------------------------------------------------
def rand_augment(x: Tensor, operations: int, strength: float, rng: torch.Generator) -> Tensor:
    """`operations` operations on every image, each drawn from all with equal chance, at `strength` (0 to 1)."""
    last = x.is_contiguous(memory_format=torch.channels_last)
    x = x.contiguous()  # operations are up to twice as fast where a channel's pixels lie side by side
    for _ in range(operations):
        which = torch.randint(len(OPERATIONS), (len(x),), generator=rng)
        signed = strength * (2.0 * torch.randint(2, (len(x),), generator=rng) - 1)
        out = x.clone()
        for number, operation in enumerate(OPERATIONS.values()):
            rows = torch.nonzero(which == number)[:, 0]
            if len(rows):
                there = rows.to(x.device)
                out[there] = operation(x[there], signed[rows].to(x.device, x.dtype))
        x = out
    return x.contiguous(memory_format=torch.channels_last) if last else x


def _grey(x: Tensor) -> Tensor:
    red, green, blue = x.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue)[:, None]


def _away(x: Tensor, anchor: Tensor, signed: Tensor) -> Tensor:
    """From the anchor away (or towards it, for a negative strength)."""
    factor = 1 + ENHANCE * signed[:, None, None, None]
    return (anchor + factor * (x - anchor)).clamp(0, 1)


def identity(x: Tensor, signed: Tensor) -> Tensor:
    return x


def brightness(x: Tensor, signed: Tensor) -> Tensor:
    return _away(x, x.new_zeros(()), signed)


def colour(x: Tensor, signed: Tensor) -> Tensor:
    return _away(x, _grey(x), signed)


def contrast(x: Tensor, signed: Tensor) -> Tensor:
    return _away(x, _grey(x).mean(dim=(2, 3), keepdim=True), signed)


def sharpness(x: Tensor, signed: Tensor) -> Tensor:
    """Away from a smoothed image (weights 1 around 5); the border pixels have no neighbours and stay."""
    kernel = x.new_ones(3, 1, 3, 3)
    kernel[:, :, 1, 1] = 5
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel / 13, groups=3)
    return _away(x, smooth, signed)


def posterize(x: Tensor, signed: Tensor) -> Tensor:
    """8 bits down to 4."""
    bits = 8 - torch.round(4 * signed.abs())
    step = 2 ** (8 - bits)[:, None, None, None]
    return torch.floor(torch.round(x * LEVELS) / step) * step / LEVELS


def solarize(x: Tensor, signed: Tensor) -> Tensor:
    """What is brighter than the threshold is inverted; at strength 1 that is everything."""
    return torch.where(x >= 1 - signed.abs()[:, None, None, None], 1 - x, x)


def auto_contrast(x: Tensor, signed: Tensor) -> Tensor:
    """Each channel stretched to all of [0, 1]; one of a single value stays."""
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)


def equalize(x: Tensor, signed: Tensor) -> Tensor:
    """Each channel's 256 levels spread so that they are about equally frequent."""
    levels = torch.round(x * LEVELS).long().flatten(2).flatten(0, 1)
    counts = torch.zeros(len(levels), LEVELS + 1, dtype=torch.long, device=x.device)
    counts.scatter_add_(1, levels, torch.ones_like(levels))
    brightest = counts.gather(1, levels.amax(dim=1, keepdim=True))
    step = (levels.shape[1] - brightest) // LEVELS
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp_min(1)).clamp(0, LEVELS)
    spread = table.gather(1, levels).to(x.dtype) / LEVELS
    return torch.where((step > 0)[:, :, None].view(*x.shape[:2], 1, 1), spread.view(x.shape), x)


def _warp(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """The image at x' = across . (x, y, 1) and y' = down . (x, y, 1), in [-1, 1]; black where there is none."""
    moves = torch.stack([across, down], dim=1)  # one for all images, or one for each
    grid = F.affine_grid(moves, [len(moves), *x.shape[1:]], align_corners=False).expand(len(x), -1, -1, -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _rows(*entries: Tensor | float, like: Tensor) -> Tensor:
    return torch.stack([e if isinstance(e, Tensor) else torch.full_like(like, e) for e in entries], dim=1)


def shear_x(x: Tensor, signed: Tensor) -> Tensor:
    return _warp(x, _rows(1.0, SHEAR * signed, 0.0, like=signed), _rows(0.0, 1.0, 0.0, like=signed))


def shear_y(x: Tensor, signed: Tensor) -> Tensor:
    return _warp(x, _rows(1.0, 0.0, 0.0, like=signed), _rows(SHEAR * signed, 1.0, 0.0, like=signed))


def shift_x(x: Tensor, signed: Tensor) -> Tensor:
    return _warp(x, _rows(1.0, 0.0, -2 * SHIFT * signed, like=signed), _rows(0.0, 1.0, 0.0, like=signed))


def shift_y(x: Tensor, signed: Tensor) -> Tensor:
    return _warp(x, _rows(1.0, 0.0, 0.0, like=signed), _rows(0.0, 1.0, -2 * SHIFT * signed, like=signed))


def rotate(x: Tensor, signed: Tensor) -> Tensor:
    cosine, sine = torch.cos(TURN * signed), torch.sin(TURN * signed)
    return _warp(x, _rows(cosine, sine, 0.0, like=signed), _rows(-sine, cosine, 0.0, like=signed))


OPERATIONS: Mapping[str, Operation] = {
    "identity": identity,
    "shear x": shear_x,
    "shear y": shear_y,
    "shift x": shift_x,
    "shift y": shift_y,
    "rotate": rotate,
    "brightness": brightness,
    "colour": colour,
    "contrast": contrast,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "auto contrast": auto_contrast,
    "equalize": equalize,
}


# --- AugMix ----------------------------------------------------------------------------------------------------------
# Hendrycks et al.: AugMix. ICLR 2020. Its nine operations: none that the corruptions of its benchmark are made of.
MIXED = ("shear x", "shear y", "shift x", "shift y", "rotate", "posterize", "solarize", "auto contrast", "equalize")
BINS = 9  # strengths are 0 / 9 to 9 / 9, of which a severity of s draws from the s weakest


def aug_mix(x: Tensor, rng: torch.Generator, severity: int = 3, chains: int = 3) -> Tensor:
    """The images mixed with a mixture of chains of one to three operations; operations are drawn for the batch."""
    dice = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
    shares = torch.tensor(dice.dirichlet([1.0] * chains, len(x)), dtype=x.dtype, device=x.device)
    kept = torch.tensor(dice.beta(1.0, 1.0, len(x)), dtype=x.dtype, device=x.device)[:, None, None, None]
    rows = x.contiguous()  # faster, as above
    mixed = torch.zeros_like(rows)
    for chain in range(chains):
        changed = rows
        for _ in range(int(dice.integers(1, 4))):
            strength = float(dice.integers(severity)) / BINS * (1 if dice.random() < 0.5 else -1)
            changed = OPERATIONS[MIXED[int(dice.integers(len(MIXED)))]](changed, x.new_full((1,), strength))
        mixed += shares[:, chain, None, None, None] * changed
    return kept * rows + (1 - kept) * mixed


# --- random convolutions ---------------------------------------------------------------------------------------------
def random_kernel(sizes: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """3 x 3 x k x k from N(0, 1 / (3 k^2)), k one of `sizes`: the output is about as large as the input."""
    size = sizes[int(torch.randint(len(sizes), (), generator=rng))]
    return torch.randn(3, 3, size, size, generator=rng) / math.sqrt(3 * size * size)


# --- tiles -----------------------------------------------------------------------------------------------------------
@cache
def distant_permutations(count: int, tiles: int = 9) -> npt.NDArray[np.int64]:
    """`count` orders of the tiles, far from each other and from the natural one; the same at every call.

    Each next one has the largest smallest Hamming distance to those before, then the largest sum, then comes first in
    the dictionary. (By the sum alone all are equal once the first few form a Latin square.)
    """
    orders = np.zeros((1, 0), dtype=np.int8)
    for length in range(1, tiles + 1):
        firsts = np.arange(length, dtype=np.int8)[:, None, None]
        rest = orders[None] + (orders[None] >= firsts)
        heads = np.broadcast_to(firsts, (length, len(orders), 1))
        orders = np.concatenate([heads, rest], axis=2).reshape(-1, length).astype(np.int8)
    nearest, total = np.full(len(orders), tiles), np.zeros(len(orders), dtype=np.int64)
    chosen = [0]  # the natural order
    for _ in range(count):
        distance = (orders != orders[chosen[-1]]).sum(axis=1)
        nearest, total = np.minimum(nearest, distance), total + distance
        chosen.append(int(np.argmax(nearest * (tiles * (count + 1) + 1) + total)))
    return orders[chosen[1:]].astype(np.int64)


def rearranged(x: Tensor, orders: Tensor, grid: int = 3) -> Tensor:
    """Tile t of an image is its tile `orders[t]` (B x grid^2). A border that does not divide into tiles stays."""
    height, width = x.shape[2] // grid, x.shape[3] // grid
    top, left = (x.shape[2] - grid * height) // 2, (x.shape[3] - grid * width) // 2
    inner = x[:, :, top : top + grid * height, left : left + grid * width]
    tiles = inner.reshape(len(x), 3, grid, height, grid, width).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    picked = tiles[torch.arange(len(x), device=x.device)[:, None], orders.to(x.device)]
    back = picked.reshape(len(x), grid, grid, 3, height, width).permute(0, 3, 1, 4, 2, 5).reshape(inner.shape)
    out = x.clone()
    out[:, :, top : top + grid * height, left : left + grid * width] = back
    return out
