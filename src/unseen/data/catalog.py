"""The datasets of the field: where they come from, how they lie on disk, and what a whole one contains.

`load_index` turns `--data NAME --root DIR` into an index; `check` says what is complete and what is missing. Both look
at the disk through the same eyes, `scan`. Nothing is downloaded: the licences ask you to fetch the images yourself.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unseen.core.errors import UserError, unknown
from unseen.data.digits import index_digits
from unseen.data.domains import (
    DomainIndex,
    build_index,
    existing_folder,
    images_in,
    index_folder,
    same_name,
    subfolders,
)


@dataclass(frozen=True)
class Domain:
    """One domain: its letter in the papers' tables, the folders it is found in, and how many images it has."""

    name: str
    letter: str
    count: int | None = None  # None: not published
    also: tuple[str, ...] = ()  # other names of its folder
    other_counts: tuple[int, ...] = ()  # of other whole releases
    per_class: tuple[int, ...] = ()  # in the order of the entry's classes


@dataclass
class Scan:
    """What lies on disk: the images' paths by domain and class, and what is not as it should be."""

    root: Path
    classes: tuple[str, ...]
    found: dict[str, dict[str, list[str]]]
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Dataset:
    """A dataset of the catalog."""

    name: str
    title: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]  # () when there are too many to list: `class_count` says how many
    class_count: int
    source: str  # where to get it
    layout: str  # how its folders look, in words
    below: tuple[str, ...] = ()  # folders below the root in which the domains may lie
    splits: tuple[tuple[str, ...], ...] = ()  # folders between domain and class; the first set that is there is read
    subset: bool = False  # the classes lie among others, which are passed over
    numbered: bool = False  # class folders may be 0, 1, 2, ... instead of names
    scan: Callable[[Dataset, Path], Scan] = field(default=lambda entry, root: scan_folders(entry, root), repr=False)

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(domain.letter for domain in self.domains)


def _descend(entry: Dataset, root: Path) -> Path:
    """The folder that holds the domains: the root, or a usual folder below it."""

    def domains_in(folder: Path) -> int:
        names = subfolders(folder)
        return sum(any(same_name(n, d) for n in names for d in (domain.name, *domain.also)) for domain in entry.domains)

    folders = [root, *(root / b for b in entry.below if (root / b).is_dir())]
    return max(folders, key=domains_in)  # the first of the best


def scan_folders(entry: Dataset, root: Path) -> Scan:
    """DOMAIN/CLASS/*, or DOMAIN/SPLIT/CLASS/*, under any of the usual names."""
    top = _descend(entry, root)
    here = subfolders(top)
    found: dict[str, dict[str, list[str]]] = {}
    problems: list[str] = []
    extra: set[str] = set()
    for domain in entry.domains:
        found[domain.name] = {}
        folders = [n for n in here if any(same_name(n, known) for known in (domain.name, *domain.also))]
        if not folders:
            problems.append(f'the domain "{domain.name}" has no folder {top / domain.name}')
            continue
        inside = top / folders[0]
        names = {n.lower(): n for n in subfolders(inside)}
        split = next((s for s in entry.splits if names.keys() >= set(s)), ())
        for part in [folders[0] + "/" + names[s] for s in split] or [folders[0]]:
            for c in subfolders(top / part):
                known = _class_of(entry, c)
                if known is None:
                    extra.add(c)
                    continue
                files = [f"{part}/{c}/{file}" for file in images_in(top / part / c)]
                found[domain.name].setdefault(known, []).extend(files)
    if extra and not entry.subset:
        problems.append(f"folders that are no classes: {', '.join(sorted(extra))}")
    classes = entry.classes or tuple(sorted({c for by_class in found.values() for c in by_class}))
    return Scan(top, classes, found, problems)


def _class_of(entry: Dataset, folder: str) -> str | None:
    """The class a folder holds, as the catalog spells it."""
    if not entry.classes:
        return folder
    if entry.numbered and folder.isdigit() and int(folder) < len(entry.classes):
        return entry.classes[int(folder)]
    return next((c for c in entry.classes if same_name(c, folder)), None)


def scan_wilds(entry: Dataset, root: Path) -> Scan:
    """WILDS: metadata.csv, and patches/patient_PPP_node_N/patch_patient_PPP_node_N_x_X_y_Y.png; domain = hospital."""
    top = next((f for f in [root, *(root / b for b in entry.below)] if (f / "metadata.csv").is_file()), root)
    found: dict[str, dict[str, list[str]]] = {domain.name: {} for domain in entry.domains}
    if not (top / "metadata.csv").is_file():
        return Scan(top, entry.classes, found, [f"there is no {top / 'metadata.csv'}"])
    problems: list[str] = []
    absent = 0
    listed: dict[str, set[str]] = {}
    with (top / "metadata.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        lacking = {"patient", "node", "x_coord", "y_coord", "tumor", "center"} - set(reader.fieldnames or ())
        if lacking:
            return Scan(top, entry.classes, found, [f"metadata.csv has no column {', '.join(sorted(lacking))}"])
        for row in reader:
            slide = f"patient_{int(row['patient']):03d}_node_{row['node']}"
            folder = f"patches/{slide}"
            if folder not in listed:
                # One listing per slide instead of one look per patch.
                listed[folder] = {file.name for file in (top / folder).iterdir()} if (top / folder).is_dir() else set()
            name = f"patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
            if name not in listed[folder]:
                absent += 1
                if absent == 1:
                    problems.append(f"metadata.csv lists {folder}/{name}, which is not there")
                continue
            domain, label = entry.domains[int(row["center"])].name, entry.classes[int(row["tumor"])]
            found[domain].setdefault(label, []).append(f"{folder}/{name}")
    if absent > 1:
        problems.append(f"{absent:,} patches that metadata.csv lists are not there")
    return Scan(top, entry.classes, found, problems)


_OFFICE_HOME = """Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards
Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Watchers File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer
Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil
Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV
Table Telephone ToothBrush Toys Trash_Can Webcam"""

_DOMAINNET = (
    # Counts of the cleaned release, then of the first one, both from the dataset's page.
    Domain("clipart", "C", 48129, other_counts=(48837,)),
    Domain("infograph", "I", 51605, other_counts=(53201,)),
    Domain("painting", "P", 72266, other_counts=(75759,)),
    Domain("quickdraw", "Q", 172500),
    Domain("real", "R", 172947, other_counts=(175327,)),
    Domain("sketch", "S", 69128, other_counts=(70386,)),
)
_DOMAINNET_FOLDERS = ("domain_net", "DomainNet", "domainnet", "images")

CATALOG: Mapping[str, Dataset] = {
    entry.name: entry
    for entry in (
        Dataset(
            name="pacs",
            title="PACS (Li et al., ICCV 2017)",
            domains=(
                Domain("photo", "P", 1670, per_class=(189, 202, 182, 186, 199, 280, 432)),
                Domain("art_painting", "A", 2048, also=("art",), per_class=(379, 255, 285, 184, 201, 295, 449)),
                Domain("cartoon", "C", 2344, per_class=(389, 457, 346, 135, 324, 288, 405)),
                Domain("sketch", "S", 3929, per_class=(772, 740, 753, 608, 816, 80, 160)),
            ),
            classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
            class_count=7,
            source="https://sketchx.eecs.qmul.ac.uk (Deeper, Broader and Artier Domain Generalization)",
            layout="art_painting/dog/*.jpg, ... (also below kfold, images, PACS or pacs_data)",
            below=("kfold", "PACS", "pacs", "pacs_data", "images", "PACS/kfold", "pacs/images"),
        ),
        Dataset(
            name="vlcs",
            title="VLCS (Fang et al., ICCV 2013)",
            domains=(
                Domain(
                    "pascal", "V", 3376, also=("VOC2007", "VOC", "PASCAL_VOC"), per_class=(330, 699, 428, 420, 1499)
                ),
                Domain("labelme", "L", 2656, per_class=(80, 1209, 89, 43, 1235)),
                Domain("caltech", "C", 1415, also=("Caltech101", "Caltech-101"), per_class=(237, 123, 118, 67, 870)),
                Domain("sun", "S", 3282, also=("SUN09",), per_class=(21, 933, 1036, 31, 1261)),
            ),
            classes=("bird", "car", "chair", "dog", "person"),
            class_count=5,
            source="the VLCS archive that DomainBed's download script fetches",
            layout="Caltech101/bird/*.jpg, ... or CALTECH/train|crossval|test/0/*.jpg, ... or CALTECH/full/0/*.jpg",
            below=("VLCS", "vlcs"),
            splits=(("full",), ("train", "crossval", "test"), ("train", "val", "test"), ("train", "test")),
            numbered=True,
        ),
        Dataset(
            name="office-home",
            title="Office-Home (Venkateswara et al., CVPR 2017)",
            domains=(
                Domain("art", "A", 2427, also=("artistic",)),
                Domain("clipart", "C", 4365),
                Domain("product", "P", 4439),
                Domain("real_world", "R", 4357, also=("real",)),
            ),
            classes=tuple(_OFFICE_HOME.split()),
            class_count=65,
            source="https://www.hemanthdv.org/officeHomeDataset.html",
            layout="Art/Alarm_Clock/*.jpg, ..., Real World/Webcam/*.jpg (also art/train|val/alarm_clock/*.jpg)",
            below=("OfficeHomeDataset_10072016", "office_home", "OfficeHome", "office_home_dg", "images"),
            splits=(("train", "val"), ("train", "test")),
        ),
        Dataset(
            name="domainnet",
            title="DomainNet (Peng et al., ICCV 2019), 345 classes",
            domains=_DOMAINNET,
            classes=(),
            class_count=345,
            source="https://ai.bu.edu/M3SDA (cleaned version)",
            layout="clipart/aircraft_carrier/*.jpg, ...",
            below=_DOMAINNET_FOLDERS,
        ),
        Dataset(
            name="domainnet10",
            title="DomainNet, the ten classes of FedBN (Li et al., ICLR 2021)",
            domains=tuple(Domain(domain.name, domain.letter) for domain in _DOMAINNET),
            classes=(
                "bird",
                "feather",
                "headphones",
                "ice_cream",
                "teapot",
                "tiger",
                "whale",
                "windmill",
                "wine_glass",
                "zebra",
            ),
            class_count=10,
            source="https://ai.bu.edu/M3SDA (cleaned version), of which ten class folders are read",
            layout="clipart/bird/*.jpg, ...",
            subset=True,
            below=_DOMAINNET_FOLDERS,
        ),
        Dataset(
            name="camelyon17",
            title="Camelyon17, the WILDS version (Koh et al., ICML 2021)",
            domains=tuple(
                Domain(f"hospital_{number}", str(number), count)
                for number, count in enumerate((59436, 34904, 85054, 129838, 146722))
            ),
            classes=("normal", "tumor"),
            class_count=2,
            source="https://wilds.stanford.edu/datasets/#camelyon17",
            layout="metadata.csv and patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png, ...",
            below=("camelyon17_v1.0", "camelyon17"),
            scan=scan_wilds,
        ),
        Dataset(
            name="digits-dg",
            title="Digits-DG (Zhou et al., AAAI 2020)",
            domains=tuple(
                Domain(name, letter, 6000, also=also, per_class=(600,) * 10)
                for name, letter, also in (
                    ("mnist", "MT", ()),
                    ("mnist_m", "MM", ("mnistm",)),
                    ("svhn", "SV", ()),
                    ("syn", "SY", ("synthetic_digits", "synth")),
                )
            ),
            classes=tuple("0123456789"),
            class_count=10,
            source="the Digits-DG archive that Dassl's dataset page links",
            layout="mnist/train|val/0/*.jpg, ...",
            below=("digits_dg", "digits-dg", "Digits-DG"),
            splits=(("train", "val"), ("train", "test")),
        ),
    )
}

BUILT_IN: Mapping[str, Callable[[], DomainIndex]] = {"digits": index_digits}
NAMES = (*BUILT_IN, *CATALOG, "folder")


def _spelled(name: str) -> str:
    """The name as the catalog spells it: `OfficeHome` is `office-home`."""
    for known in NAMES:
        if same_name(known, name):
            return known
    raise unknown("dataset", name, NAMES, "See them with: unseen data list.")


def load_index(data: str, root: Path | str | None = None) -> DomainIndex:
    """The one entry point: `digits`, a name of the catalog, or `folder` for any ROOT/DOMAIN/CLASS/*."""
    name = _spelled(data)
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if root is None:
        if name in CATALOG:
            entry = CATALOG[name]
            raise UserError(
                f"{entry.title} is not part of unseen: get it from {entry.source}, and say where it is with --root."
            )
        raise UserError('The dataset "folder" needs --root, a folder with DOMAIN/CLASS/*.jpg or *.png below it.')
    folder = existing_folder(root)
    if name not in CATALOG:
        return index_folder(folder)
    return _index(CATALOG[name], CATALOG[name].scan(CATALOG[name], folder))


def _index(entry: Dataset, scan: Scan) -> DomainIndex:
    """An index of a whole scan, or an error that names the first thing that is missing."""
    advice = f"see all that is missing with: unseen data check {entry.name} --root {scan.root}"
    if not any(files for by_class in scan.found.values() for files in by_class.values()):
        raise UserError(f"There is no {entry.title} in {scan.root}: expected {entry.layout}.")
    if scan.problems:
        raise UserError(f"{entry.title} in {scan.root} is not whole: {scan.problems[0]}; {advice}.")
    for domain in entry.domains:
        for c in scan.classes:
            if not scan.found[domain.name].get(c):
                raise UserError(f'The class "{c}" of domain "{domain.name}" has no images in {scan.root}; {advice}.')
    return build_index(
        entry.name,
        scan.root,
        [domain.name for domain in entry.domains],
        scan.classes,
        (
            (d, k, path)
            for d, domain in enumerate(entry.domains)
            for k, c in enumerate(scan.classes)
            for path in scan.found[domain.name][c]
        ),
        entry.letters,
    )


@dataclass(frozen=True)
class Line:
    """One row of a report: a domain, or a class of it whose number is not the expected one."""

    domain: str
    label: str  # "" for the whole domain
    expected: int | None  # None: not known
    found: int

    @property
    def right(self) -> bool:
        return self.found > 0 if self.expected is None else self.found == self.expected

    @property
    def verdict(self) -> str:
        return "ok" if self.right else "too many" if self.found > (self.expected or 0) else "missing"


@dataclass(frozen=True)
class Report:
    """What `unseen data check` found."""

    name: str
    title: str
    root: Path
    lines: tuple[Line, ...]
    problems: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.problems and all(line.right for line in self.lines)

    def __str__(self) -> str:
        rows = [f"{self.title} in {self.root}"]
        for line in self.lines:
            what = f"{line.domain}/{line.label}" if line.label else line.domain
            expected = "" if line.expected is None else f" of {line.expected:,}"
            rows.append(f"  {line.verdict:9}{what}: {line.found:,}{expected} images")
        rows += [f"  {'wrong':9}{problem}" for problem in self.problems]
        return "\n".join([*rows, "complete" if self.complete else "not complete"])


def check(name: str, root: Path | str | None = None) -> Report:
    """Is the dataset whole? Every domain's count, and by name every class and folder that is not as published."""
    spelled = _spelled(name)
    if spelled not in CATALOG:
        index = load_index(spelled, root)
        counts = (Line(domain, "", None, len(index.rows(domain))) for domain in index.domains)
        return Report(spelled, index.name, index.root, tuple(counts), ())
    entry = CATALOG[spelled]
    if root is None:
        load_index(spelled)  # raises, and says where to get it
    scan = entry.scan(entry, existing_folder(root or ""))
    problems = list(scan.problems)
    if len(scan.classes) != entry.class_count:
        problems.append(f"{len(scan.classes)} classes instead of {entry.class_count}")
    lines: list[Line] = []
    for domain in entry.domains:
        lines += _domain_lines(domain, scan.classes, scan.found[domain.name])
    return Report(entry.name, entry.title, scan.root, tuple(lines), tuple(problems))


def _domain_lines(domain: Domain, classes: Sequence[str], found: Mapping[str, list[str]]) -> list[Line]:
    counts = [len(found.get(c, ())) for c in classes]
    total = sum(counts)
    # The first release of DomainNet is whole too: held against itself, not against the cleaned one.
    expected = total if total in domain.other_counts else domain.count
    per_class: Sequence[int | None] = domain.per_class or [None] * len(classes)
    lines = [Line(domain.name, c, want, have) for c, want, have in zip(classes, per_class, counts, strict=True)]
    return [Line(domain.name, "", expected, total), *(line for line in lines if not line.right)]
