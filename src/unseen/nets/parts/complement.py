"""L2D's parts: the style-complement network, and the measures that it and the task network are trained by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Filters = Sequence[tuple[Tensor, Tensor]]  # weight and bias of: colour, then down and up of every scale

SCALES = (5, 9, 13, 17)
NOISE = 0.01
DROPPED = 0.2


def draw_filters(scales: Sequence[int], rng: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Convolutions as torch begins them: weights and biases from U(-b, b), b = 1 / (k sqrt 3)."""

    def one(size: int) -> tuple[Tensor, Tensor]:
        bound = 1 / (size * math.sqrt(3))
        weight, bias = torch.rand(3, 3, size, size, generator=rng), torch.rand(3, generator=rng)
        return bound * (2 * weight - 1), bound * (2 * bias - 1)

    return [one(1), *(one(size) for size in scales for _ in ("down", "up"))]


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`F.conv2d` by Fourier transforms: with three channels and kernels up to 17 px, many times as fast on CPUs."""
    size = (x.shape[2], x.shape[3])
    product = torch.einsum("bihw,oihw->bohw", torch.fft.rfft2(x), torch.fft.rfft2(weight, s=size).conj())
    whole: Tensor = torch.fft.irfft2(product, s=size)
    # The sums that would reach over the border wrap around it, and lie behind the others.
    return whole[:, :, : size[0] - weight.shape[2] + 1, : size[1] - weight.shape[3] + 1] + bias[:, None, None]


def convolved_back(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`F.conv_transpose2d` in the same way."""
    size = (x.shape[2] + weight.shape[2] - 1, x.shape[3] + weight.shape[3] - 1)
    product = torch.einsum("bihw,iohw->bohw", torch.fft.rfft2(x, s=size), torch.fft.rfft2(weight, s=size))
    whole: Tensor = torch.fft.irfft2(product, s=size)
    return whole + bias[:, None, None]


class StyleComplement(nn.Module):
    """Images to images in styles that the data has not: a colour map and, at several scales, a convolution, a new style
    per channel and place, and a convolution back. Only the styles are trained; convolutions are random.
    """

    def __init__(self, image_size: int, scales: Sequence[int] = SCALES) -> None:
        super().__init__()
        self.scales = [size for size in scales if size < image_size]
        sides = [image_size - size + 1 for size in self.scales]
        self.noise = nn.Parameter(torch.zeros(1))
        self.stretch = nn.ParameterList(1 + 0.1 * torch.randn(3, side, side) for side in sides)
        self.shift = nn.ParameterList(0.1 * torch.randn(3, side, side) for side in sides)
        # The convolutions under which the styles are trained: drawn once.
        rng = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        for number, (weight, bias) in enumerate(draw_filters(self.scales, rng)):
            self.register_buffer(f"weight{number}", weight)
            self.register_buffer(f"bias{number}", bias)

    def fixed(self) -> Filters:
        count = 1 + 2 * len(self.scales)
        return [
            (cast(Tensor, getattr(self, f"weight{n}")), cast(Tensor, getattr(self, f"bias{n}"))) for n in range(count)
        ]

    def forward(self, x: Tensor, filters: Filters, shares: Tensor, noise: Tensor, dropped: float = 0.0) -> Tensor:
        """The mean of the colour map's and the scales' images, weighted by `shares`. `x` is normalised."""
        x = x + NOISE * self.noise * noise
        colour, *pairs = filters
        parts = [torch.tanh(F.dropout(F.conv2d(x, *colour), dropped, training=dropped > 0))]
        for scale, (stretch, shift) in enumerate(zip(self.stretch, self.shift, strict=True)):
            styled = stretch * F.instance_norm(convolved(x, *pairs[2 * scale])) + shift
            parts.append(torch.tanh(convolved_back(styled, *pairs[2 * scale + 1])))
        return torch.stack([share * part for share, part in zip(shares, parts, strict=True)]).sum(0) / shares.sum()

    def diversify(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Images in [0, 1] by new convolutions and shares."""
        filters = [(w.to(x.device), b.to(x.device)) for w, b in draw_filters(self.scales, rng)]
        shares = torch.randn(1 + len(self.scales), generator=rng).to(x.device)
        noise = torch.randn(x.shape, generator=rng).to(x.device)
        return torch.sigmoid(self(x, filters, shares, noise, DROPPED))

    def estimate(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Images in [0, 1] by the fixed convolutions, in equal shares: what the styles are trained on."""
        shares = torch.ones(1 + len(self.scales), device=x.device)
        return torch.sigmoid(self(x, self.fixed(), shares, torch.randn(x.shape, generator=rng).to(x.device)))


class GaussianNeck(nn.Module):
    """Features to means and log-variances, B x 2D."""

    def __init__(self, before: nn.Module, inputs: int, size: int) -> None:
        super().__init__()
        self.before = before
        self.mean = nn.Linear(inputs, size)
        self.log_variance = nn.Linear(inputs, size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return torch.cat([F.leaky_relu(self.mean(x)), F.relu(self.log_variance(x))], dim=1)


class MeanHead(nn.Linear):
    """Reads the means of Gaussian features, or vectors of that size."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features[:, : self.in_features])


# --- measures --------------------------------------------------------------------------------------------------------
def supervised_contrast(z: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """-log of the share that a row of the same class has among all other rows, mean over such rows, then over rows."""
    z = F.normalize(z)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similar = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    shares = similar - similar.logsumexp(dim=1, keepdim=True)
    positive = (labels[:, None] == labels[None]) & ~itself
    return -(shares.masked_fill(~positive, 0).sum(1) / positive.sum(1).clamp_min(1)).mean()


def log_likelihood(mean: Tensor, log_variance: Tensor, y: Tensor) -> Tensor:
    """Of y under the Gaussians, without constants, mean over all numbers."""
    return (-((mean - y).square()) / log_variance.exp() - log_variance).mean()


def club(mean: Tensor, log_variance: Tensor, y: Tensor, shuffled: Tensor) -> Tensor:
    """An upper bound of the mutual information: own pairs against pairs with other rows (`shuffled`) of y."""
    own = -((mean - y).square()) / log_variance.exp()
    other = -((mean - y[shuffled]).square()) / log_variance.exp()
    return (own - other).sum(dim=1).mean() / 2


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """MMD^2 with five Gaussian kernels, the middle one as wide as the mean squared distance."""
    rows, count = torch.cat([a, b]), len(a) + len(b)
    squared = (rows[:, None] - rows[None]).square().sum(dim=2)
    width = squared.detach().sum() / (count * count - count)
    kernels = torch.stack([torch.exp(-squared / (width * 2.0**k).clamp_min(1e-8)) for k in range(-2, 3)]).sum(0)
    n = len(a)
    return kernels[:n, :n].mean() + kernels[n:, n:].mean() - kernels[:n, n:].mean() - kernels[n:, :n].mean()


def class_discrepancy(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    """The mean of the classes' discrepancies."""
    present = labels.unique()  # type: ignore[no-untyped-call]
    return torch.stack([discrepancy(a[labels == label], b[labels == label]) for label in present]).mean()
