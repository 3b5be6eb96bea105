"""The images that a run's settings name."""

from __future__ import annotations

from pathlib import Path

from unseen.data.catalog import load_index
from unseen.data.domains import DomainIndex
from unseen.data.store import Store, open_store
from unseen.runs.settings import Settings


def index_of(settings: Settings) -> DomainIndex:
    """The dataset's images by domain and class, before any pixel is read."""
    root = settings.data.root
    return load_index(settings.data.name, Path(root) if root else None)


def store_of(settings: Settings, index: DomainIndex | None = None, progress: bool | None = None) -> Store:
    """The dataset's images, decoded now or before; `index` where it was made before."""
    data = settings.data
    found = index_of(settings) if index is None else index
    return open_store(found, data.image_size, skip_broken=data.skip_broken, progress=progress)
