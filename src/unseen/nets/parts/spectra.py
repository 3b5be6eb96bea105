"""Low frequencies of images: their amplitudes carry much of what a domain looks like."""

from __future__ import annotations

import torch
from torch import Tensor


def _window(image: Tensor, size: float) -> tuple[slice, slice]:
    """The middle of a shifted spectrum: frequencies up to `size` times the shorter side, and always the mean colour."""
    height, width = image.shape[-2:]
    reach = int(min(height, width) * size)
    reach = min(reach, (min(height, width) - 1) // 2)
    return (
        slice(height // 2 - reach, height // 2 + reach + 1),
        slice(width // 2 - reach, width // 2 + reach + 1),
    )


def low_amplitudes(images: Tensor, size: float) -> Tensor:
    """The amplitudes of the low frequencies of each image and colour, B x 3 x F x F."""
    rows, columns = _window(images, size)
    low: Tensor = torch.fft.fftshift(torch.fft.fft2(images.float()), dim=(-2, -1))[..., rows, columns]
    return low.abs()


def with_amplitudes(images: Tensor, amplitudes: Tensor, share: Tensor, size: float) -> Tensor:
    """Images whose low amplitudes are `share` (one per image) of these and the rest of their own; phases stay."""
    rows, columns = _window(images, size)
    spectrum = torch.fft.fftshift(torch.fft.fft2(images.float()), dim=(-2, -1))
    low = spectrum[..., rows, columns]
    mixed = torch.lerp(low.abs(), amplitudes, share.view(-1, 1, 1, 1))
    spectrum[..., rows, columns] = torch.polar(mixed, low.angle())
    changed: Tensor = torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(-2, -1))).real
    return changed.clamp(0, 1).to(images.dtype)
