"""Other clients' styles on a client's images: by a style network given as files, or on the net's own first maps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.types import Batch, ImageSet
from unseen.nets.norms.moments import pooled_moments
from unseen.nets.parts.styles import Style, restyle, style_of
from unseen.nets.weights import read_file

EPSILON = 1e-5  # of AdaIN, beside the variances

# Channels of the 3 x 3 convolutions of VGG-19 up to relu4_1; 0 is a halving of the size.
ENCODER = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512)
DECODER = (256, 0, 256, 256, 256, 128, 0, 128, 64, 0, 64, 3)  # its mirror; 0 is a doubling


def _chain(inputs: int, plan: Sequence[int], resize: type[nn.Module], **settings: object) -> list[nn.Module]:
    """Reflection padding, convolution, ReLU for each number of channels. Their order gives the files' tensor names."""
    layers: list[nn.Module] = []
    for channels in plan:
        if channels == 0:
            layers.append(resize(**settings))
        else:
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(inputs, channels, 3), nn.ReLU()]
            inputs = channels
    return layers


class StyleNetwork(nn.Module):
    """AdaIN (Huang and Belongie 2017): VGG maps of an image take another style and are decoded to an image."""

    def __init__(self) -> None:
        super().__init__()
        # The published encoder begins with a 1 x 1 convolution that turns [0, 1] RGB into what VGG wants.
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 3, 1), *_chain(3, ENCODER, nn.MaxPool2d, kernel_size=2, ceil_mode=True)
        )
        self.decoder = nn.Sequential(*_chain(512, DECODER, nn.Upsample, scale_factor=2)[:-1])

    def forward(self, x: Tensor, mean: Tensor, std: Tensor, share: float = 1.0) -> Tensor:
        """The images in a style, or `share` of the way to it."""
        maps = self.encoder(x)
        own = style_of(maps, EPSILON)
        image = self.decoder(restyle(maps, *towards(own, mean, std, share), own))
        return F.interpolate(image, x.shape[2:], mode="bilinear") if image.shape != x.shape else image


def towards(own: Style, mean: Tensor, std: Tensor, share: float) -> Style:
    """A style between an image's own and another: maps in it are the mixture of the maps in both."""
    return Style(share * mean + (1 - share) * own.mean, share * std + (1 - share) * own.std)


@cache
def style_network(encoder: str, decoder: str) -> StyleNetwork:
    """The network with the weights of two files; read once per process."""
    network = StyleNetwork()
    for part, path in ((network.encoder, encoder), (network.decoder, decoder)):
        wanted, found = part.state_dict(), read_file(path)
        for name, like in wanted.items():
            if name not in found or found[name].shape != like.shape:
                raise UserError(
                    f'"{path}" does not fit the AdaIN style network: {name} needs the shape {tuple(like.shape)}.'
                )
        part.load_state_dict({name: found[name] for name in wanted})  # the published encoder goes on to relu5
    return network.eval().requires_grad_(False)


def resized(x: Tensor, size: int) -> Tensor:
    """Square images of another size; as they are where they have it."""
    if x.shape[2] == size:
        return x
    return F.interpolate(x, (size, size), mode="bilinear", antialias=True)


class Copies:
    """The restyled images that this process has made, by image and style; no more than LIMIT bytes of them are kept."""

    LIMIT = 2**31

    def __init__(self, network: StyleNetwork, size: int) -> None:
        self.network, self.size = network, size
        self._kept: dict[bytes, Tensor] = {}
        self._bytes = 0

    def copy(self, x: Tensor, style: Tensor, device: torch.device) -> Tensor:
        """One image, 3 x H x W, in a style, 2 x C. In 256 steps, as a file of it would be."""
        key = hashlib.blake2b(x.numpy().tobytes() + style.numpy().tobytes(), digest_size=16).digest()
        if (found := self._kept.get(key)) is None:
            found = self._made(x[None].to(device), style.to(device)).cpu()
            if self._bytes + found.numel() <= self.LIMIT:
                self._kept[key] = found
                self._bytes += found.numel()
        return found.to(x.dtype) / 255

    @torch.no_grad()
    def _made(self, x: Tensor, style: Tensor) -> Tensor:
        network = self.network.to(x.device)
        new = network(resized(x, self.size), style[:1], style[1:]).clamp(0, 1)
        return resized(new, x.shape[2])[0].clamp(0, 1).mul(255).round().to(torch.uint8)


@cache
def kept_copies(encoder: str, decoder: str, size: int) -> Copies:
    return Copies(style_network(encoder, decoder), size)


AS_IT_IS = -1  # in the place of a row of the bank


def looks_of(counts: Tensor, images: int, most: int, rng: torch.Generator) -> Tensor:
    """In which styles each image is seen, N x K: rows of a bank that holds `counts` styles of each other client.

    For each image K clients are drawn, its own among them and none twice, and of each of them one style. Its own client
    stands for the image as it is.
    """
    clients = torch.rand(images, len(counts) + 1, generator=rng).argsort(dim=1, stable=True)[:, :most]
    ends = counts.cumsum(0)
    first, held = F.pad(ends - counts, (0, 1)), F.pad(counts, (0, 1), value=1)  # the last one: its own client
    rows = first[clients] + (torch.rand(clients.shape, generator=rng) * held[clients]).long()
    return rows.masked_fill(clients == len(counts), AS_IT_IS)


@dataclass(frozen=True)
class RestyledImages:
    """A client's images, each drawn in one of its looks: as it is, or in the style of another client.

    An image has the same looks for good, as in the paper, where all copies are made before training. Here a copy is made
    when it is first drawn. It is made alone and of the image itself, so its bits do not depend on when that is.
    """

    images: ImageSet
    bank: Tensor  # styles of other clients, M x 2 x C
    looks: Tensor  # N x K: rows of the bank, or AS_IT_IS
    copies: Copies
    rng: torch.Generator
    device: torch.device

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> Tensor:
        return self.images.labels

    @property
    def domains(self) -> Tensor:
        return self.images.domains

    def batch(self, indices: Tensor) -> Batch:
        batch = self.images.batch(indices)
        drawn = torch.randint(self.looks.shape[1], (len(indices),), generator=self.rng)
        x = batch.x.clone()
        for place, row in enumerate(self.looks[indices, drawn].tolist()):
            if row != AS_IT_IS:
                x[place] = self.copies.copy(batch.x[place], self.bank[row], self.device)
        return replace(batch, x=x)


def overall(styles: Style) -> Tensor:
    """The style of all images' maps together, 1 x 2 x C: mean and standard deviation over images and pixels."""
    mean, var = pooled_moments(styles.mean.double(), (styles.std.double().square() - EPSILON).clamp_min(0))
    return torch.stack([mean, (var + EPSILON).sqrt()], dim=1).float()


def take(bank: Tensor, images: int, share: float, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Which images take a style (each with probability `share`), and each one's row of the bank."""
    chosen = torch.rand(images, generator=rng) < share
    return chosen.nonzero().flatten(), bank[torch.randint(len(bank), (images,), generator=rng)][chosen]


class Restyle(nn.Module):
    """In train mode, some images' maps take styles of a bank (N x 2 x C) that the client got for this round."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.bank: Tensor | None = None  # not state: it is another for each client and round

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or self.bank is None:
            return maps
        rows, given = take(self.bank, len(maps), self.share)
        own = style_of(maps, EPSILON)
        mean, std = own.mean.clone(), own.std.clone()
        mean[rows.to(maps.device)], std[rows.to(maps.device)] = (part.to(mean) for part in given.unbind(1))
        return restyle(maps, mean, std, own)
