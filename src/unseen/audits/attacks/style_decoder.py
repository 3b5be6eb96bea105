"""Style statistics: how much of an image do they give back?

The attacker trains a small decoder from style vectors to images. He has public images of a domain that no site has, and
measures their styles as a client would, by the method's own survey and the model that the client had; so he has pairs of
vector and image to learn from. What a site tells is then decoded to an image. (Inverting a representation by a network
that is trained on other images: Dosovitskiy and Brox, CVPR 2016.)

The guess counts if it is nearest to its own source among 100 candidates of the site. Of a vector that is the mean of k
images, one of them is sought; it falls as k grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from unseen.audits.attack import Known, Observed, Truth
from unseen.audits.attacks.styles import FEWEST, Game, also_at_sites, behind_words, centres, centres_told
from unseen.audits.crossed import surveyed
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import likeness, mean, of_100, psnr, side_by_side
from unseen.audits.record import Exchanged

Decoder = Callable[[Tensor], Tensor]


def decoder_of(styles: Tensor, images: Tensor, seed: int, steps: int = 400, width: int = 256) -> Decoder:
    """Trained on pairs of a style vector (N x D) and its image (N x 3 x S x S)."""
    middle, spread = styles.mean(0), styles.std(0).clamp_min(1e-9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(styles.shape[1], width), nn.ReLU(), nn.Linear(width, images[0].numel()), nn.Sigmoid()
        )
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    inputs, goals = ((styles - middle) / spread).float(), images.flatten(1)
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (64,), generator=order)
        loss = (net(inputs[rows]) - goals[rows]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    @torch.no_grad()
    def decode(told: Tensor) -> Tensor:
        decoded: Tensor = net(((told - middle) / spread).float())
        return decoded.view(-1, *images.shape[1:])

    return decode


@dataclass(frozen=True)
class StyleDecoder:
    name: ClassVar[str] = "style decoder"
    plays: ClassVar[Plays] = "coordinator"

    behind: Sequence[int] = (1, 4, 16, 64)  # k: images behind one vector
    trials: int = 25

    def fits(self, observed: Observed, known: Known) -> bool:
        return bool(surveyed(observed, known, "styles"))

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        found = surveyed(observed, known, "styles")
        one = found[0][0]
        game = Game.of(one.client, known.times(self.trials, FEWEST), max(self.behind), truth)
        decode = decoder_of(centres(known.public, one, known), known.public.x, known.seed)
        findings = [self._decoded(count, game, decode, one, known) for count in self.behind]
        return findings + also_at_sites(findings, found, observed)

    def _decoded(self, count: int, game: Game, decode: Decoder, one: Exchanged, known: Known) -> Finding:
        told = [centres_told(group, one, known, augmented=True) for group in game.groups(count)]
        decoded = [decode(rows) for rows in told]
        likest = [likeness(images, game.candidates.x) for images in decoded]  # of each row to each candidate
        hits = sum(int(alike.max(0).values.argmax()) == trial for trial, alike in enumerate(likest))
        # Of several rows the one that is most like the original is shown.
        guesses = torch.stack(
            [images[alike[:, n].argmax()] for n, (images, alike) in enumerate(zip(decoded, likest, strict=True))]
        )
        originals = game.candidates.x[: len(guesses)]
        return Finding(
            attack=f"{self.name}: {behind_words(count)}",
            plays=self.plays,
            saw=f"the style of {count} image{'s' * (count > 1)}",
            real=False,
            scores={"PSNR in dB": mean([psnr(a, b) for a, b in zip(guesses, originals, strict=True)])},
            identified_of_100=of_100(hits, len(guesses), len(game.candidates)),
            words=f"a decoder trained on {len(known.public)} images of the unseen domain; augmentation included.",
            pictures={f"styles-{count}.png": side_by_side(originals[:8], guesses[:8])},
        )
