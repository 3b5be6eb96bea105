"""Protocols: each paper's budget as one explicit object, and two for small machines.

A protocol says everything but the data, the target, the method and the seed. Numbers of different protocols are never put in
one table: the same FedAvg on PACS is 77.35, 72.63 and 77.88 % under three of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from unseen.core.errors import UserError, unknown
from unseen.core.plan import OptimizerPlan, Plan


@dataclass(frozen=True)
class Protocol:
    """A budget with a name."""

    name: str
    about: str
    data: str | None  # the dataset it is for; None: any
    backbone: str
    image_size: int
    rounds: int
    batch_size: int
    optimizer: OptimizerPlan
    local_epochs: int | None = None
    local_steps: int | None = None
    partition: str = "domain"
    participation: float = 1.0
    validation: float = 0.1  # the part of a client's images that is held back for validation
    client_selection: Literal["last", "best"] = "last"
    check_every: int = 20
    server_selection: Literal["last", "validation", "oracle"] = "validation"
    augmentation: str = "none"
    weights: str = "none"
    bottleneck: int | None = None
    test_every: int = 0  # rounds between two looks at the target, for curves only; 0: only the selected model
    seeds: tuple[int, ...] = (0,)


FEDFD = Protocol(
    name="fedfd",
    about="FedFD-A, Sec. 4.1: ResNet-18 with a 256-d bottleneck, one client per domain, 40 rounds of 200 steps of 64",
    data="pacs",
    backbone="resnet18",
    image_size=224,
    rounds=40,
    local_steps=200,
    batch_size=64,
    optimizer=OptimizerPlan(lr=0.01, momentum=0.5),
    validation=0.2,
    client_selection="best",
    check_every=20,
    augmentation="domainbed",
    weights="imagenet",
    bottleneck=256,
    seeds=(0, 1, 2, 3),
)

FEDFD_30 = replace(
    FEDFD,
    name="fedfd-30",
    about="FedFD-A, Table 10: 30 clients (10 per domain, iid), 10 in a round, 120 rounds of 20 steps of 64",
    rounds=120,
    local_steps=20,
    partition="iid:10",
    participation=10,
)

FEDFD_VIT = Protocol(
    name="fedfd-vit",
    about="FedFD-A, Table 6: ViT-B/16 with AdamW as in DoPrompt's code, one client per domain, rounds as in fedfd",
    data="pacs",
    backbone="vit_base_patch16_224",
    image_size=224,
    rounds=40,
    local_steps=200,
    batch_size=32,
    optimizer=OptimizerPlan(name="adamw", lr=5e-6, weight_decay=0.01),
    validation=0.2,
    client_selection="best",
    check_every=20,
    augmentation="domainbed",
    weights="imagenet",
    seeds=(0, 1, 2, 3),
)

GPERXAN = Protocol(
    name="gperxan",
    about="gPerXAN, Sec. 4.1: ResNet-50, one client per domain, 100 rounds of one epoch",
    data="pacs",
    backbone="resnet50",
    image_size=224,
    rounds=100,
    local_epochs=1,
    batch_size=32,
    optimizer=OptimizerPlan(lr=2e-3, momentum=0.9, weight_decay=5e-4, schedule="cosine", persist=True),
    validation=0.1,
    augmentation="gperxan",
    weights="imagenet",
    seeds=(0, 1, 2),
)

GPERXAN_CAMELYON17 = replace(
    GPERXAN,
    name="gperxan-camelyon17",
    about="gPerXAN, Table 3: DenseNet-121 at 96 px, one client per hospital, 100 rounds of one epoch",
    data="camelyon17",
    backbone="densenet121",
    image_size=96,
    validation=0.2,
)

STABLEFDG = Protocol(
    name="stablefdg",
    about="StableFDG, Sec. 4.1: ResNet-18, 30 clients of one domain each, 10 in a round, 50 rounds of 5 epochs",
    data="pacs",
    backbone="resnet18",
    image_size=224,
    rounds=50,
    local_epochs=5,
    batch_size=32,
    optimizer=OptimizerPlan(lr=0.001, momentum=0.9, weight_decay=5e-4, schedule="cosine"),
    partition="iid:10",
    participation=10,
    validation=0.1,
    server_selection="last",
    augmentation="dassl",
    weights="imagenet",
    seeds=(2024, 2025, 2026),
)

STABLEFDG_MULTI = replace(
    STABLEFDG,
    name="stablefdg-multi",
    about="StableFDG, Table 2: as stablefdg, with several domains per client by Dirichlet(0.5)",
    partition="mixed:30:0.5",
)

FEDADG = Protocol(
    name="fedadg",
    about="FedADG, Sec. 5: AlexNet, one client per domain, 3 + 7 epochs a round, 30 rounds, split 70/30",
    data="pacs",
    backbone="alexnet",
    image_size=224,
    rounds=30,
    local_epochs=10,
    batch_size=16,
    optimizer=OptimizerPlan(lr=0.001, momentum=0.9, weight_decay=1e-5),
    validation=0.3,
    augmentation="fedadg",
    weights="imagenet",
    seeds=(0, 1, 2, 3, 4),
)

DIGITS = Protocol(
    name="digits",
    about="for small machines: built-in digits, a ConvNet at 32 px, one client per domain, minutes on two cores",
    data="digits",
    backbone="convnet",
    image_size=32,
    rounds=12,
    local_epochs=1,
    batch_size=16,
    optimizer=OptimizerPlan(lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="cosine"),
    validation=0.2,
    augmentation="digits",
    test_every=4,
    seeds=(0, 1, 2),
)

DIGITS_VIT = replace(
    DIGITS,
    name="digits-vit",
    about="for small machines: digits as tokens, timm's smallest ViT at 64 px with AdamW; weights by benchmarks/letters.py",
    backbone="test_vit",
    image_size=64,
    optimizer=OptimizerPlan(name="adamw", lr=2e-3, weight_decay=0.01, schedule="cosine"),
)

PACS_QUICK = Protocol(
    name="pacs-quick",
    about="for small machines: PACS, MobileNetV2, one client per domain, minutes per FedAvg run on one core",
    data="pacs",
    backbone="mobilenetv2_100",
    image_size=112,
    rounds=5,
    local_steps=20,
    batch_size=32,
    optimizer=OptimizerPlan(lr=0.01, momentum=0.9, weight_decay=5e-4, schedule="cosine"),
    validation=0.1,
    augmentation="domainbed",
    weights="imagenet",
    seeds=(0, 1, 2),
)

PROTOCOLS: dict[str, Protocol] = {
    p.name: p
    for p in (
        FEDFD,
        FEDFD_30,
        FEDFD_VIT,
        GPERXAN,
        GPERXAN_CAMELYON17,
        STABLEFDG,
        STABLEFDG_MULTI,
        FEDADG,
        DIGITS,
        DIGITS_VIT,
        PACS_QUICK,
    )
}


@dataclass(frozen=True)
class Settings:
    """Everything that decides the bits of one run. The same settings are the same run directory."""

    method: str
    data: str
    target: str
    seed: int
    protocol: str
    backbone: str
    image_size: int
    bottleneck: int | None
    weights: str
    partition: str
    validation: float
    test_every: int
    plan: Plan
    fields: dict[str, Any] = field(default_factory=dict)  # the method's fields that differ from their defaults
    root: str | None = None
    skip_broken: bool = False
    engine: str = "local"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Settings:
        plan = dict(value["plan"])
        plan["optimizer"] = OptimizerPlan(**plan["optimizer"])
        known = {f.name for f in fields(cls)}
        return cls(**{**{k: v for k, v in value.items() if k in known}, "plan": Plan(**plan)})


def protocol_of(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS, f"The protocols are {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]


def protocol_for(data: str) -> Protocol:
    """The small protocol for a dataset that was given without one."""
    return PROTOCOLS["digits"] if data == PROTOCOLS["digits"].data else PROTOCOLS["pacs-quick"]


PLAN_FIELDS = {f.name for f in fields(Plan)}
OPTIMIZER_FIELDS = {f.name for f in fields(OptimizerPlan)} - {"name"}


def settings(
    *,
    method: str,
    target: str,
    data: str | None = None,
    protocol: str | None = None,
    seed: int | None = None,
    root: str | None = None,
    fields: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Settings:
    """A protocol, changed where the user said so. `changes` are fields of Protocol, Plan or OptimizerPlan."""
    chosen = protocol_of(protocol) if protocol else protocol_for(data or "digits")
    dataset = data or chosen.data
    if dataset is None:
        raise UserError(f'The protocol "{chosen.name}" is for any dataset; give one with --data.')
    changes = {key: value for key, value in changes.items() if value is not None}
    if changes.get("rounds", 1) < 1 or changes.get("batch_size", 2) < 2:
        raise UserError("--rounds must be at least 1 and --batch-size at least 2 (BatchNorm needs two images).")
    if "local_epochs" in changes and "local_steps" in changes:
        raise UserError("Give --local-epochs or --local-steps, not both.")
    budget = {"local_epochs": chosen.local_epochs, "local_steps": chosen.local_steps}
    if "local_epochs" in changes or "local_steps" in changes:
        budget = {"local_epochs": changes.pop("local_epochs", None), "local_steps": changes.pop("local_steps", None)}
    optimizer = replace(chosen.optimizer, **{k: changes.pop(k) for k in list(changes) if k in OPTIMIZER_FIELDS})
    own = {name: getattr(chosen, name) for name in PLAN_FIELDS if hasattr(chosen, name) and name not in budget}
    plan = Plan(
        **{
            **own,
            **budget,
            "optimizer": optimizer,
            "seed": seed if seed is not None else chosen.seeds[0],
            **{k: changes.pop(k) for k in list(changes) if k in PLAN_FIELDS},
        }
    )
    places = ("backbone", "image_size", "bottleneck", "weights", "partition", "validation", "test_every")
    values = {name: changes.pop(name, getattr(chosen, name)) for name in places}
    return Settings(
        method=method,
        data=dataset,
        target=target,
        seed=plan.seed,
        protocol=chosen.name,
        plan=plan,
        fields=dict(fields or {}),
        root=root,
        **values,
        **changes,
    )
