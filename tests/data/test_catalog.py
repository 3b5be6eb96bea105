"""The catalog: every layout is found, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.trees import plant
from unseen.core.errors import UserError
from unseen.data.catalog import CATALOG, NAMES, check, load_index

PACS = Path(__file__).parents[3] / "shared/data/PACS"


def pacs_tree(root: Path, leave_out: str = "") -> None:
    entry = CATALOG["pacs"]
    files = [f"{domain.name}/{c}/1.jpg" for domain in entry.domains for c in entry.classes]
    plant(root, [file for file in files if not leave_out or not file.startswith(leave_out)])


def test_counts_agree_with_themselves() -> None:
    for entry in CATALOG.values():
        assert len(entry.classes) in (0, entry.class_count)
        assert len(set(entry.letters)) == len(entry.domains)
        for domain in entry.domains:
            if domain.per_class:
                assert sum(domain.per_class) == domain.count
    totals = {name: sum(d.count or 0 for d in entry.domains) for name, entry in CATALOG.items()}
    assert totals["pacs"] == 9_991
    assert totals["vlcs"] == 10_729
    assert totals["office-home"] == 15_588
    assert totals["domainnet"] == 586_575
    assert totals["camelyon17"] == 455_954
    assert totals["digits-dg"] == 24_000


@pytest.mark.parametrize("below", ["", "kfold", "PACS", "pacs/images"])
def test_pacs_is_found_in_the_folders_it_comes_in(tmp_path: Path, below: str) -> None:
    pacs_tree(tmp_path / below)
    index = load_index("PACS", tmp_path)
    assert index.domains == ("photo", "art_painting", "cartoon", "sketch")
    assert index.letters == ("P", "A", "C", "S")
    assert len(index) == 28
    assert index.sources("s") == ("photo", "art_painting", "cartoon")
    assert index.find("A") == "art_painting"


@pytest.mark.parametrize("name", ["S", "sketch", "Sketch"])
def test_a_target_is_a_name_or_a_letter(tmp_path: Path, name: str) -> None:
    pacs_tree(tmp_path)
    assert load_index("pacs", tmp_path).find(name) == "sketch"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    pacs_tree(tmp_path, leave_out="sketch/dog")
    report = check("pacs", tmp_path)
    assert not report.complete
    wrong = {(line.domain, line.label): (line.expected, line.found) for line in report.lines if not line.right}
    assert wrong["sketch", "dog"] == (772, 0)
    assert wrong["photo", ""] == (1670, 7)
    assert "missing  sketch/dog: 0 of 772 images" in str(report)
    assert str(report).endswith("not complete")
    with pytest.raises(UserError, match=r'class "dog" of domain "sketch".*unseen data check pacs'):
        load_index("pacs", tmp_path)


def test_a_missing_domain_and_a_strange_class_are_named(tmp_path: Path) -> None:
    pacs_tree(tmp_path, leave_out="cartoon")
    plant(tmp_path, ["photo/unicorn/1.jpg"])
    problems = " ".join(check("pacs", tmp_path).problems)
    assert '"cartoon" has no folder' in problems and "unicorn" in problems
    with pytest.raises(UserError, match='"cartoon" has no folder'):
        load_index("pacs", tmp_path)


def test_another_dataset_is_not_there(tmp_path: Path) -> None:
    pacs_tree(tmp_path)
    with pytest.raises(UserError, match=r"There is no VLCS.*Caltech101/bird"):
        load_index("vlcs", tmp_path)


def test_vlcs_as_domainbed_has_it(tmp_path: Path) -> None:
    classes = ("bird", "car", "chair", "dog", "person")
    plant(tmp_path, [f"{d}/{c}/1.jpg" for d in ("Caltech101", "LabelMe", "SUN09", "VOC2007") for c in classes])
    index = load_index("vlcs", tmp_path)
    assert index.domains == ("pascal", "labelme", "caltech", "sun")
    assert index.paths[:2] == ("VOC2007/bird/1.jpg", "VOC2007/car/1.jpg")
    assert index.find("V") == "pascal"


def test_vlcs_in_splits_with_numbered_classes(tmp_path: Path) -> None:
    names = ("CALTECH", "LABELME", "PASCAL", "SUN")
    plant(
        tmp_path / "VLCS",
        [f"{d}/{s}/{k}/1.jpg" for d in names for s in ("train", "crossval", "test") for k in range(5)],
    )
    index = load_index("vlcs", tmp_path)
    assert index.classes == ("bird", "car", "chair", "dog", "person")
    assert len(index) == 4 * 3 * 5
    assert index.counts().tolist() == [[3] * 5] * 4
    plant(tmp_path / "VLCS", [f"{d}/full/{k}/{i}.jpg" for d in names for k in range(5) for i in range(2)])
    assert load_index("vlcs", tmp_path).counts().tolist() == [[2] * 5] * 4  # `full` holds all the splits again


def test_office_home_by_its_own_names_and_by_dassls(tmp_path: Path) -> None:
    classes = CATALOG["office-home"].classes
    own, dassl = ("Art", "Clipart", "Product", "Real World"), ("art", "clipart", "product", "real_world")
    plant(tmp_path / "one/OfficeHomeDataset_10072016", [f"{d}/{c}/00001.jpg" for d in own for c in classes])
    plant(tmp_path / "two", [f"{d}/{s}/{c.lower()}/1.jpg" for d in dassl for s in ("train", "val") for c in classes])
    one, two = load_index("OfficeHome", tmp_path / "one"), load_index("office-home", tmp_path / "two")
    assert one.domains == two.domains == ("art", "clipart", "product", "real_world")
    assert (len(one), len(two)) == (260, 520)
    assert one.find("R") == "real_world" and one.classes == two.classes


def test_domainnet_and_its_ten_classes(tmp_path: Path) -> None:
    domains = [domain.name for domain in CATALOG["domainnet"].domains]
    ten = CATALOG["domainnet10"].classes
    plant(tmp_path, [f"{d}/{c}/1.jpg" for d in domains for c in (*ten, "aircraft_carrier")])
    assert len(load_index("domainnet", tmp_path).classes) == 11
    index = load_index("domainnet10", tmp_path)
    assert index.classes == ten and len(index) == 60
    assert check("domainnet10", tmp_path).complete  # its counts are not published
    assert "11 classes instead of 345" in check("domainnet", tmp_path).problems


def test_digits_dg(tmp_path: Path) -> None:
    domains = ("mnist", "mnist_m", "svhn", "syn")
    plant(tmp_path / "digits_dg", [f"{d}/{s}/{k}/1.jpg" for d in domains for s in ("train", "val") for k in range(10)])
    index = load_index("digits-dg", tmp_path)
    assert index.domains == domains and index.find("SY") == "syn"
    assert index.counts().tolist() == [[2] * 10] * 4


def camelyon(root: Path, rows: list[tuple[int, int, int, int]], absent: int = 0) -> None:
    """(patient, node, tumor, center) per patch; the last `absent` patches have no file."""
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for n, (patient, node, tumor, center) in enumerate(rows):
        lines.append(f"{n},{patient:03d},{node},{3328 + n},21792,{tumor},0,{center},0")
        slide = f"patient_{patient:03d}_node_{node}"
        if n < len(rows) - absent:
            plant(root, [f"patches/{slide}/patch_{slide}_x_{3328 + n}_y_21792.png"])
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")


def test_camelyon17_as_wilds_has_it(tmp_path: Path) -> None:
    root = tmp_path / "camelyon17_v1.0"
    root.mkdir()
    camelyon(root, [(4 + 20 * h, 1, t, h) for h in range(5) for t in (1, 0, 0)])
    index = load_index("camelyon17", tmp_path)
    assert index.domains == tuple(f"hospital_{h}" for h in range(5))
    assert index.classes == ("normal", "tumor")
    assert index.counts().tolist() == [[2, 1]] * 5
    assert index.find("3") == "hospital_3"
    assert index.paths[0] == "patches/patient_004_node_1/patch_patient_004_node_1_x_3329_y_21792.png"
    assert all((root / path).is_file() for path in index.paths)


def test_camelyon17_names_the_patches_that_are_not_there(tmp_path: Path) -> None:
    camelyon(tmp_path, [(4 + 20 * h, 1, t, h) for h in range(5) for t in (0, 1)] + [(99, 0, 0, 2)] * 3, absent=3)
    with pytest.raises(UserError, match=r"lists patches/patient_099_node_0/patch_.*x_3338.*not there"):
        load_index("camelyon17", tmp_path)
    assert any("3 patches" in problem for problem in check("camelyon17", tmp_path).problems)


def test_camelyon17_without_its_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no Camelyon17"):
        load_index("camelyon17", tmp_path)
    (tmp_path / "metadata.csv").write_text("patient,node\n1,2\n")
    assert "no column center" in check("camelyon17", tmp_path).problems[0]


def test_names_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'no dataset "paks". Did you mean "pacs"'):
        load_index("paks")
    with pytest.raises(UserError, match=r"PACS.*get it from .*--root"):
        load_index("pacs")
    with pytest.raises(UserError, match=r"get it from .*--root"):
        check("pacs")
    with pytest.raises(UserError, match="needs --root"):
        load_index("folder")
    with pytest.raises(UserError, match="does not exist"):
        load_index("pacs", tmp_path / "nowhere")
    assert set(NAMES) == {"digits", "folder", *CATALOG}


def test_digits_and_folders_are_loaded_and_checked_too(tmp_path: Path) -> None:
    plant(tmp_path, ["a/x/1.png", "b/x/1.png"])
    assert load_index("folder", tmp_path).domains == ("a", "b")
    assert check("folder", tmp_path).complete
    assert load_index("digits").domains[0] == "ink"
    assert check("digits").complete


@pytest.mark.skipif(not PACS.is_dir(), reason="the PACS images are not beside this checkout (../shared/data/PACS)")
def test_the_real_pacs_is_complete() -> None:
    report = check("pacs", PACS)
    assert report.complete, str(report)
    assert len(load_index("pacs", PACS)) == 9_991
