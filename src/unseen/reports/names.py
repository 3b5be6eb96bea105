"""Methods as their papers write them, and one colour for each: the same in every table, figure and report.

A method that is not here (yours, say) is called by its name on the command line and has a colour by that name.
"""

from __future__ import annotations

import re
import zlib

TITLES = {
    "adapter": "Adapters", "afl": "AFL", "bin": "BIN", "ccst": "CCST", "copa": "COPA", "coral": "CORAL",
    "csac": "CSAC", "dann": "DANN", "doprompt": "DoPrompt", "dson": "DSON", "dsu": "DSU", "elcfs": "ELCFS",
    "erm": "ERM", "fedadagrad": "FedAdagrad", "fedadam": "FedAdam", "fedadg": "FedADG", "fedavg": "FedAvg",
    "fedavgm": "FedAvgM", "fedbn": "FedBN", "fedfd": "FedFD", "fedfd-a": "FedFD-A", "fedgma": "FedGMA",
    "fediir": "FedIIR", "fish": "Fish", "fishr": "Fishr", "mcgdm": "MCGDM", "swad": "SWAD",
    "fednova": "FedNova", "fedomg": "FedOMG", "fedproto": "FedProto", "fedprox": "FedProx", "fedsam": "FedSAM",
    "fedsr": "FedSR", "fedyogi": "FedYogi", "fpl": "FPL", "ga": "GA", "gperxan": "gPerXAN", "groupdro": "GroupDRO",
    "guide": "guiding head", "ibn": "IBN", "irm": "IRM", "jigen": "JiGen", "l2d": "L2D", "mixstyle": "MixStyle",
    "mixup": "Mixup", "mmd": "MMD", "moon": "MOON", "qfedavg": "q-FedAvg", "randaug": "RandAugment",
    "randconv": "RandConv", "rsc": "RSC", "scaffold": "SCAFFOLD", "selfreg": "SelfReg", "sfa": "SFA",
    "silobn": "SiloBN", "stablefdg": "StableFDG", "vrex": "V-REx",
    # A method's colour is by its place here: new ones come last.
    "centraldp": "central DP", "dp": "local DP", "fedccrl": "FedCCRL", "fedclip": "FedCLIP", "fedins": "FedIns",
    "fedlgf": "FedLGF", "fedspeed": "FedSpeed", "fisc": "FISC", "geomedian": "geometric median", "krum": "Krum",
    "mcsad": "MCSAD", "median": "median", "normbound": "norm bound", "promptfl": "PromptFL",
    "trimmedmean": "trimmed mean", "efdmix": "EFDMix", "feddgmoe": "FedDG-MoE", "styleddg": "StyleDDG",
    "adcol": "ADCOL",
}  # fmt: skip

FIXED_COLOURS, HUES = 10, 36  # classes of the page's style sheet: .c0 to .c9, and .h0 to .h35 around the circle
# The methods that are compared most are told apart at a glance; FedAvg, which all are compared with, is grey.
FIXED = {"fedavg": 7, "fedfd-a": 1, "fedfd": 0, "gperxan": 2, "stablefdg": 3, "fedadg": 4, "ga": 6, "elcfs": 5,
         "fedbn": 8, "silobn": 9}  # fmt: skip


def titled(label: str) -> str:
    """`fedbn+ga (step=0.1) *` -> `FedBN+GA (step=0.1) *`: the names become the papers', the rest stays."""
    match = re.match(r"[A-Za-z0-9_+-]+", label)
    if match is None:
        return label
    parts = match[0].split("+")
    if not all(part in TITLES for part in parts):
        return label
    return "+".join(TITLES[part] for part in parts) + label[match.end() :]


def short(label: str) -> str:
    """`fedfd-a (mean, not sum)` -> `FedFD-A`: for charts. Changed fields (`mu=0.1`) stay: they tell two rows apart."""
    name, bracket, rest = titled(label).partition(" (")
    inside, _, behind = rest.partition(")")
    told = ", ".join(word for word in inside.split(", ") if "=" in word)
    return f"{name}{f' ({told})' if told else ''}{behind}" if bracket else name


def colour_of(label: str) -> int:
    """The number of a row's colour: below 10 a fixed one, above a hue. By the label alone: the same in every report."""
    if label in FIXED:
        return FIXED[label]
    if label in TITLES:
        return (
            FIXED_COLOURS + 13 * list(TITLES).index(label) % HUES
        )  # 13 has no common factor with 36: neighbours differ
    return FIXED_COLOURS + zlib.crc32(label.encode()) % HUES
