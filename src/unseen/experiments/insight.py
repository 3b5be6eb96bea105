"""A look into a finished run's model, for the report: features, predictions and what the method shows of itself.

Written once into the run directory (insight.safetensors), because the report reads records and runs no models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.files import read_tensors, write_tensors
from unseen.core.seeding import numpy_generator
from unseen.core.types import Tensors
from unseen.data.split import partition
from unseen.data.store import Store
from unseen.experiments.collect import Collection
from unseen.federation.measure import EVALUATION_BATCH
from unseen.method import Method
from unseen.nets.net import Net
from unseen.runs.directory import RunDirectory
from unseen.runs.images import store_of
from unseen.runs.model import Trained, build_net, load_trained
from unseen.runs.settings import NO_TARGET, Settings

FILE = "insight.safetensors"
UNSEEN, SEEN, SHOWN = 240, 80, 12  # images of the target, of each source, and shown ones of each kind (right, wrong)
SAME = 96  # images of the target that are kept with every method's answer, to compare methods by
REFERENCE = 120  # points of a reference distribution, all classes together
THUMB = 64  # px, at most


def look_into(directory: RunDirectory) -> Path:
    """The run's insight, made now or before."""
    path = directory.path / FILE
    if not path.exists() or _lacks_something(read_tensors(path)[0]):
        write_tensors(path, *_insight(load_trained(directory.path, device="cpu")))
    return path


def _lacks_something(tensors: Mapping[str, Tensor]) -> bool:
    """Insight of an earlier version has less."""
    return "same.image" not in tensors or ("inspected/reference" in tensors and "after/reference" not in tensors)


def look_into_all(collection: Collection, target: str | None, said: Callable[[str], None]) -> None:
    """Insight for one run of each method: the same target and seed for all. What cannot be had is said and left out."""
    for group in collection.groups:
        chosen = group.hardest() if target is None else target
        if chosen not in group.targets:
            raise UserError(f'There is no run with the unseen domain "{target}"; there are {", ".join(group.targets)}.')
        for row in group.rows:
            runs = [run for (name, _), run in sorted(row.runs.items()) if name == chosen]
            if not runs:
                continue
            said(f"looking into {row.label}, unseen {chosen}")
            try:
                look_into(runs[0])
            except UserError as error:
                said(f"left out: {error}")


def _insight(trained: Trained) -> tuple[Tensors, dict[str, object]]:
    settings = trained.settings
    if settings.target == NO_TARGET:
        raise UserError("A run that left no domain out has nothing unseen to look at.")
    store = store_of(settings, progress=False)
    index = store.index
    domains = [*index.sources(settings.target), settings.target]
    rows = [_some(store, domain, UNSEEN if domain == settings.target else SEEN) for domain in domains]
    domain = torch.cat([torch.full((len(own),), d) for d, own in enumerate(rows)])
    chosen = torch.cat(rows)
    scores, features = _run(trained.net, trained.method, store, chosen)
    labels = store.images.labels[chosen]
    tensors: Tensors = {"place": _plane(features), "label": labels, "domain": domain}
    unseen = torch.nonzero(domain == len(domains) - 1)[:, 0]
    shown = _shown(scores[unseen], labels[unseen])
    at = chosen[unseen[shown]]
    probability, prediction = scores[unseen[shown]].softmax(1).max(1)
    tensors |= {
        "image": _thumbs(store, at),
        "image.label": labels[unseen[shown]],
        "image.prediction": prediction,
        "image.probability": probability,
    }
    same = unseen[:SAME]  # the draw does not depend on the method: these are the same images in every run
    tensors |= {
        "same.image": _thumbs(store, chosen[same]),
        "same.label": labels[same],
        "same.prediction": scores[same].argmax(1),
    }
    trained.net.eval()
    with torch.inference_mode():
        own = trained.method.inspect(trained.net, store.images.batch(at).x) if len(at) else {}
        every = trained.method.inspect(trained.net, store.images.batch(chosen[unseen[:EVALUATION_BATCH]]).x)
    tensors |= {f"shown/{name}": _small(value.float()) for name, value in own.items()}
    tensors |= {f"inspected/{name}": value.float() for name, value in every.items() if value.dim() == 2}
    if "reference" in every:
        seen = domain < len(domains) - 1
        tensors |= _beside_reference(trained, store, chosen[seen], features[seen])
    return tensors, {
        "domains": domains,
        "classes": list(trained.classes),
        "target": settings.target,
        "clients": clients_of(settings, store),
    }


def clients_of(settings: Settings, store: Store) -> dict[str, list[list[int]]]:
    """Who has how many images: client -> a list per source domain of numbers by class."""
    index = store.index
    sources = index.sources(settings.target)
    found = {}
    for client, rows in partition(index, sources, settings.data.partition, settings.seed).items():
        table = np.zeros((len(index.domains), len(index.classes)), dtype=np.int64)
        np.add.at(table, (index.domain[rows], index.label[rows]), 1)
        found[client] = [table[index.domains.index(domain)].tolist() for domain in sources]
    return found


def _some(store: Store, domain: str, count: int) -> Tensor:
    """Rows of a domain, drawn the same way for every run."""
    rows = store.index.rows(domain)
    order = numpy_generator(0, client=domain, purpose="insight").permutation(len(rows))
    return torch.from_numpy(np.sort(rows[order[:count]]))


def _run(net: Net, method: Method, store: Store, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Logits by the method's own rule, and what its head saw meanwhile."""
    scores, features = [], []
    net.eval()
    for part in torch.split(rows, EVALUATION_BATCH):
        x = store.images.batch(part).x
        with torch.inference_mode(), _overheard(net) as seen:
            scores.append(method.predict(net, x).float())
            # A method that asks its head several times (an ensemble) is shown by the mean.
            features.append(torch.stack(seen).mean(0) if seen else net.features(x).float())
    return torch.cat(scores), torch.cat(features)


def _beside_reference(trained: Trained, store: Store, rows: Tensor, features: Tensor) -> Tensors:
    """Features of the sources and points of the reference in one plane, before and after training (FedADG, Figs. 3, 4)."""
    method = trained.method
    seen = {"after": (trained.net, features)}
    try:
        start = build_net(trained.settings, method, len(trained.classes))
        seen["before"] = start, _run(start, method, store, rows)[1]
    except UserError:  # the weights that training began with are not at hand
        pass
    x = store.images.batch(rows[torch.arange(REFERENCE) % len(rows)]).x
    tensors: Tensors = {}
    for when, (net, own) in seen.items():
        with torch.inference_mode():
            told = method.inspect(net.eval(), x)
        points = told["reference"].float()
        plane = _plane(torch.cat([own, points]))
        tensors |= {f"{when}/place": plane[: len(own)].clone(), f"{when}/reference": plane[len(own) :].clone()}
        if "reference.class" in told:
            tensors[f"{when}/reference.class"] = told["reference.class"]
    return tensors


@contextmanager
def _overheard(net: Net) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []

    def hear(_: torch.nn.Module, given: tuple[Tensor, ...]) -> None:
        seen.append(given[0].float().flatten(1))

    handle = net.head.register_forward_pre_hook(hear)
    try:
        yield seen
    finally:
        handle.remove()


def _plane(features: Tensor) -> Tensor:
    """t-SNE, from the first two principal components: the same picture for the same features."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, max(2.0, len(features) / 4))
    places = TSNE(init="pca", perplexity=perplexity, random_state=0, max_iter=500).fit_transform(features.numpy())
    return torch.from_numpy(np.asarray(places, dtype=np.float32))


def _shown(scores: Tensor, labels: Tensor) -> Tensor:
    """Positions of some right and some wrong predictions: the first drawn of each."""
    right = scores.argmax(1) == labels
    order = torch.from_numpy(numpy_generator(0, purpose="insight shown").permutation(len(labels)))
    kept = [order[right[order]][:SHOWN], order[~right[order]][:SHOWN]]
    return torch.cat(kept)


def _thumbs(store: Store, rows: Tensor) -> Tensor:
    """N x 3 x S x S, uint8."""
    if not len(rows):
        return torch.zeros(0, 3, THUMB, THUMB, dtype=torch.uint8)
    x = store.images.batch(rows).x
    if x.shape[-1] > THUMB:
        x = torch.nn.functional.interpolate(x, size=(THUMB, THUMB), mode="area")
    return (x * 255).round().clamp(0, 255).to(torch.uint8)


def _small(value: Tensor) -> Tensor:
    """Maps (B x H x W) at the size of the thumbs."""
    if value.dim() == 3 and value.shape[-1] > THUMB:
        return torch.nn.functional.interpolate(value[:, None], size=(THUMB, THUMB), mode="area")[:, 0]
    return value


def insight_of(directory: RunDirectory) -> tuple[Mapping[str, Tensor], dict[str, object]] | None:
    """What was written, or None."""
    path = directory.path / FILE
    return read_tensors(path) if path.exists() else None
