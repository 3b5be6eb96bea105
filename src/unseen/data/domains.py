"""An index of images by domain and class: what a dataset is before any pixel is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.core.errors import UserError, nearest

IntArray = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

DICOM = frozenset({".dcm", ".dicom"})
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"}) | DICOM


@dataclass(frozen=True, eq=False)
class DomainIndex:
    """Images by row: sorted by domain, then class, then file name.

    The images are files below `root`, or, for a built-in dataset, an array that `draw` makes.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    paths: tuple[str, ...]  # one per image, relative to `root`, with "/"; for drawn images, a name
    domain: IntArray  # one per image: an index into `domains`
    label: IntArray  # one per image: an index into `classes`
    group: IntArray  # images of one group are never parted between training and validation, nor between clients
    root: Path = Path()
    letters: tuple[str, ...] = ()  # one per domain, as the papers write them; () when there are none
    draw: Callable[[], Pixels] | None = None  # makes all images, N x S x S x 3, instead of reading files
    version: str = ""  # with `draw`: names what it draws

    def __len__(self) -> int:
        return len(self.paths)

    def find(self, name: str) -> str:
        """The domain of this name or letter, as the index spells it."""
        for domain in self.domains:
            if same_name(domain, name):
                return domain
        for domain, letter in zip(self.domains, self.letters, strict=False):
            if letter.lower() == name.lower():
                return domain
        raise UserError(
            f'"{name}" is not a domain of {self.name}.{nearest(name, self.domains)} '
            f"Its domains are {', '.join(self.domains)}."
        )

    def sources(self, target: str) -> tuple[str, ...]:
        """All domains but the target (a name or a letter)."""
        unseen = self.find(target)
        return tuple(domain for domain in self.domains if domain != unseen)

    def rows(self, domain: str) -> IntArray:
        """The rows of one domain (a name or a letter), in order."""
        return np.flatnonzero(self.domain == self.domains.index(self.find(domain)))

    def counts(self) -> IntArray:
        """Images per domain and class."""
        table = np.zeros((len(self.domains), len(self.classes)), dtype=np.int64)
        np.add.at(table, (self.domain, self.label), 1)
        return table

    def without(self, rows: Sequence[int]) -> DomainIndex:
        """The index without some rows (files that cannot be read)."""
        keep = np.ones(len(self), dtype=bool)
        keep[list(rows)] = False
        if self.draw is not None:
            raise ValueError("drawn images have no rows to leave out")
        return replace(
            self,
            paths=tuple(path for path, kept in zip(self.paths, keep, strict=True) if kept),
            domain=self.domain[keep],
            label=self.label[keep],
            group=self.group[keep],
        )


def same_name(one: str, other: str) -> bool:
    """`Real World`, `real_world` and `RealWorld` are one name."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def leads_to(kind: Callable[[], bool]) -> bool:
    """Is an entry of a folder of this kind? A link that leads round in a circle is of none."""
    try:
        return kind()
    except OSError:
        return False


@contextmanager
def opened(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of a folder; an error for people if it cannot be read, or is gone meanwhile."""
    try:
        with os.scandir(folder) as entries:
            yield entries
    except OSError as error:
        raise UserError(f"The folder {folder} could not be read ({error.strerror}).") from None


def subfolders(folder: Path) -> list[str]:
    """The visible folders in a folder, sorted."""
    with opened(folder) as entries:
        return sorted(e.name for e in entries if not e.name.startswith(".") and leads_to(e.is_dir))


def images_in(folder: Path) -> list[str]:
    """The visible images in a folder, sorted by the code points of their names: the same order on every machine."""
    with opened(folder) as entries:
        return sorted(
            e.name
            for e in entries
            if not e.name.startswith(".")
            and f".{e.name.rpartition('.')[2]}".lower() in SUFFIXES
            and leads_to(e.is_file)
        )


def existing_folder(root: Path | str) -> Path:
    folder = Path(root).expanduser()
    if not folder.exists():
        raise UserError(f"The folder {folder} does not exist; give the folder of the images with --root.")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder; give the folder of the images with --root.")
    return folder


def build_index(
    name: str,
    root: Path,
    domains: Sequence[str],
    classes: Sequence[str],
    entries: Iterable[tuple[int, int, str]],
    letters: Sequence[str] = (),
) -> DomainIndex:
    """An index from (domain, class, path) triples in any order. Each image is a group of its own."""
    ordered = sorted(entries)
    table: npt.NDArray[Any] = np.array([(d, c) for d, c, _ in ordered], dtype=np.int64).reshape(-1, 2)
    return DomainIndex(
        name=name,
        domains=tuple(domains),
        classes=tuple(classes),
        paths=tuple(path for _, _, path in ordered),
        domain=table[:, 0].copy(),
        label=table[:, 1].copy(),
        group=np.arange(len(ordered), dtype=np.int64),
        root=root,
        letters=tuple(letters),
    )


def index_folder(root: Path | str, name: str = "folder") -> DomainIndex:
    """ROOT/DOMAIN/CLASS/*.jpg, *.png, ...: every domain must have the same classes, none of them empty."""
    folder = existing_folder(root)
    found = {
        domain: {c: images_in(folder / domain / c) for c in subfolders(folder / domain)}
        for domain in subfolders(folder)
    }
    # A folder without class folders (docs, splits) is not a domain unless nothing else is there either.
    found = {domain: classes for domain, classes in found.items() if classes}
    if not any(files for classes in found.values() for files in classes.values()):
        raise UserError(f"There are no images in {folder}; they are expected as DOMAIN/CLASS/*.jpg or *.png below it.")
    _check_same_classes(folder, {domain: tuple(classes) for domain, classes in found.items()})
    for domain, by_class in found.items():
        for c, files in by_class.items():
            if not files:
                raise UserError(
                    f'The class "{c}" of domain "{domain}" is empty: put images into {folder / domain / c}.'
                )
    domains = tuple(found)
    classes = tuple(found[domains[0]])
    return build_index(
        name,
        folder,
        domains,
        classes,
        (
            (d, k, f"{domain}/{c}/{file}")
            for d, domain in enumerate(domains)
            for k, c in enumerate(classes)
            for file in found[domain][c]
        ),
    )


def _check_same_classes(folder: Path, classes: dict[str, tuple[str, ...]]) -> None:
    """One domain that differs from the rest is named, with the class that differs."""
    everywhere = set.intersection(*(set(names) for names in classes.values()))
    anywhere = sorted(set.union(*(set(names) for names in classes.values())))
    for c in anywhere:
        if c in everywhere:
            continue
        having = [domain for domain, names in classes.items() if c in names]
        lacking = [domain for domain in classes if domain not in having]
        if len(having) < len(lacking):
            raise UserError(
                f'The domain "{having[0]}" has a class "{c}" that "{lacking[0]}" lacks: every domain below {folder} '
                "needs the same classes."
            )
        raise UserError(
            f'The domain "{lacking[0]}" has no class "{c}", but "{having[0]}" has: every domain below {folder} '
            "needs the same classes."
        )


def index_site(root: Path | str, classes: Sequence[str] = (), name: str = "", apart: Sequence[str] = ()) -> DomainIndex:
    """One site's own folder, ROOT/CLASS/*: a dataset of one domain (named after the folder unless `name` says).

    `classes` are the federation's, in its order; a site may lack some of them, but not have others. Its images are in
    the order in which a folder of all domains has them, so that the split is the same. Folders named `apart` are no
    classes.
    """
    folder = existing_folder(root)
    found = {c: images_in(folder / c) for c in subfolders(folder) if c not in apart}
    found = {c: files for c, files in found.items() if files or c in classes}
    if not any(found.values()):
        raise UserError(f"There are no images in {folder}; they are expected as CLASS/*.jpg or *.png below it.")
    names = tuple(classes) or tuple(found)
    for c in found:
        if c not in names:
            raise UserError(
                f'The site {folder} has a class "{c}" that the federation does not have.{nearest(c, names)} '
                f"The classes are {', '.join(names)}."
            )
    domain = name or folder.resolve().name
    return build_index(
        domain,
        folder,
        (domain,),
        names,
        ((0, k, f"{c}/{file}") for k, c in enumerate(names) for file in found.get(c, ())),
    )
