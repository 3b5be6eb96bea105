"""Amplitude spectra: which image are they of, and how much of it do they give back?

*Matching*: an amplitude spectrum is a fingerprint; the attacker takes the candidate with the same one. *Phase retrieval*:
Gerchberg and Saxton's alternation (1972) with Fienup's hybrid input-output (1982): an image in [0, 1] whose low
amplitudes are those that were sent. Frequencies that were not sent are free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth, rows_of
from unseen.audits.crossed import handed_on, surveyed
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import likeness, mean, of_100, psnr, side_by_side
from unseen.core.types import Batch

CANDIDATES = 100
SAME = 1e-3  # two spectra of the same image, up to rounding


def central(spectrum: Tensor, width: int) -> Tensor:
    """The middle `width` x `width` of a shifted spectrum."""
    middle = spectrum.shape[-1] // 2
    reach = width // 2
    return spectrum[..., middle - reach : middle - reach + width, middle - reach : middle - reach + width]


def amplitudes_of(images: Tensor, width: int) -> Tensor:
    return central(torch.fft.fftshift(torch.fft.fft2(images.float()), dim=(-2, -1)), width).abs()


def from_amplitude_and_phase(amplitude: Tensor, phase: Tensor) -> Tensor:
    """The image of a whole shifted spectrum."""
    image: Tensor = torch.fft.ifft2(torch.fft.ifftshift(torch.polar(amplitude, phase), dim=(-2, -1))).real
    return image


def retrieve(amplitudes: Tensor, begin: Tensor, iterations: int = 200, feedback: float = 0.7) -> Tensor:
    """Images in [0, 1] with these low amplitudes: hybrid input-output steps, then plain ones."""
    width, image = amplitudes.shape[-1], begin.clone()
    for step in range(iterations):
        spectrum = torch.fft.fftshift(torch.fft.fft2(image), dim=(-2, -1))
        low = central(spectrum, width)
        low.copy_(torch.polar(amplitudes, low.angle()))  # a view: the whole spectrum changes
        projected = torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(-2, -1))).real
        inside = (projected >= 0) & (projected <= 1)
        if step < iterations // 2:
            image = torch.where(inside, projected, image - feedback * (projected - projected.clamp(0, 1)))
        else:
            image = projected.clamp(0, 1)
    return image


@dataclass(frozen=True)
class SpectrumMatching:
    name: ClassVar[str] = "spectra"
    plays: ClassVar[Plays] = "coordinator"

    images: int = 50
    iterations: int = 100

    def fits(self, observed: Observed, known: Known) -> bool:
        return bool(surveyed(observed, known, "spectra"))

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        one, _, sent = surveyed(observed, known, "spectra")[0]
        width = sent.shape[-1]
        train = truth.sites[one.client].train
        every = train.batch(torch.arange(len(train)))
        fingerprints = amplitudes_of(every.x, width).flatten(1)
        rows = sent[: known.times(self.images, 16)]
        distances = torch.cdist(rows.flatten(1).double(), fingerprints.double())
        sources = distances.argmin(1)
        exact = distances.min(1).values <= SAME * rows.flatten(1).double().norm(dim=1)
        findings = [
            self._matching(rows, sources, exact, fingerprints, known),
            self._retrieval(rows, sources, exact, every, known),
        ]
        if handed_on(sent, [other.brief for other in observed.exchanges if other.client != one.client]):
            findings += [
                replace(f, plays="site", words=f"{f.words} Every other site was handed these spectra.", pictures={})
                for f in findings
            ]
        return findings

    def _games(self, source: int, count: int, known: Known) -> Tensor:
        """The source first, and 99 other images of the site."""
        order = torch.randperm(count, generator=known.generator(f"spectra {source}"))
        return torch.cat([torch.tensor([source]), order[order != source][: CANDIDATES - 1]])

    def _matching(self, rows: Tensor, sources: Tensor, exact: Tensor, prints: Tensor, known: Known) -> Finding:
        hits = 0
        for row, source, known_source in zip(rows, sources.tolist(), exact.tolist(), strict=True):
            game = self._games(source, len(prints), known)
            distances = (prints[game] - row.flatten()).norm(dim=1)
            hits += known_source and int(distances.argmin()) == 0
        return Finding(
            attack=f"{self.name}: matching",
            plays=self.plays,
            saw=f"amplitude spectra of {rows.shape[-1]} x {rows.shape[-1]} frequencies",
            real=True,
            identified_of_100=of_100(hits, len(rows), min(CANDIDATES, len(prints))),
            words=f"{len(rows)} spectra of the run; the image is one of 100 candidates of the same site.",
        )

    def _retrieval(self, rows: Tensor, sources: Tensor, exact: Tensor, every: Batch, known: Known) -> Finding:
        truth = rows_of(every, sources)
        begin = torch.rand(truth.x.shape, generator=known.generator("phases"))
        found = retrieve(rows, begin, known.times(self.iterations, 50))
        hits = 0
        for guess, source, known_source in zip(found, sources.tolist(), exact.tolist(), strict=True):
            game = self._games(source, len(every), known)
            hits += known_source and int(likeness(guess[None], every.x[game])[0].argmax()) == 0
        return Finding(
            attack=f"{self.name}: phase retrieval",
            plays=self.plays,
            saw=f"amplitude spectra of {rows.shape[-1]} x {rows.shape[-1]} frequencies",
            real=True,
            scores={"PSNR in dB": mean([psnr(a, b) for a, b in zip(found, truth.x, strict=True)])},
            identified_of_100=of_100(hits, len(rows), min(CANDIDATES, len(every))),
            words=f"{len(rows)} spectra of the run; images in [0, 1] with these amplitudes.",
            pictures={"spectra.png": side_by_side(truth.x[:8], found[:8])},
        )
