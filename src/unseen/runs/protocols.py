"""Protocols: each paper's budget as one explicit object, and some for small machines.

Numbers of different protocols are never put in one table: the same FedAvg on PACS is 77.35, 72.63 and 77.88 % under
three of them.
"""

from __future__ import annotations

from dataclasses import replace

from unseen.core.errors import unknown
from unseen.core.plan import OptimizerPlan, Plan
from unseen.runs.settings import DataSettings, NetSettings, Protocol

FEDFD = Protocol(
    name="fedfd",
    about="FedFD-A, Sec. 4.1: ResNet-18 with a 256-d bottleneck, one client per domain, 40 rounds of 200 steps of 64",
    data=DataSettings(name="pacs", image_size=224, validation=0.2),
    net=NetSettings(backbone="resnet18", bottleneck=256, weights="imagenet"),
    plan=Plan(
        local_epochs=None,
        rounds=40,
        local_steps=200,
        batch_size=64,
        optimizer=OptimizerPlan(lr=0.01, momentum=0.5),
        client_selection="best",
        check_every=20,
        augmentation="domainbed",
    ),
    seeds=(0, 1, 2, 3),
)

FEDFD_30 = replace(
    FEDFD,
    name="fedfd-30",
    about="FedFD-A, Table 10: 30 clients (10 per domain, iid), 10 in a round, 120 rounds of 20 steps of 64",
    data=replace(FEDFD.data, partition="iid:10"),
    plan=replace(FEDFD.plan, rounds=120, local_steps=20, participation=10),
)

FEDFD_VIT = Protocol(
    name="fedfd-vit",
    about="FedFD-A, Table 6: ViT-B/16 with AdamW as in DoPrompt's code, one client per domain, rounds as in fedfd",
    data=DataSettings(name="pacs", image_size=224, validation=0.2),
    net=NetSettings(backbone="vit_base_patch16_224", weights="imagenet"),
    plan=Plan(
        local_epochs=None,
        rounds=40,
        local_steps=200,
        batch_size=32,
        optimizer=OptimizerPlan(name="adamw", lr=5e-06, weight_decay=0.01),
        client_selection="best",
        check_every=20,
        augmentation="domainbed",
    ),
    seeds=(0, 1, 2, 3),
)

GPERXAN = Protocol(
    name="gperxan",
    about="gPerXAN, Sec. 4.2: ResNet-50, one client per domain, 100 rounds of one epoch",
    data=DataSettings(name="pacs", image_size=224, validation=0.1),
    net=NetSettings(backbone="resnet50", weights="imagenet"),
    plan=Plan(
        rounds=100,
        local_epochs=1,
        batch_size=32,
        keep_last=True,
        optimizer=OptimizerPlan(lr=0.002, momentum=0.9, weight_decay=0.0005, schedule="cosine", persist=True),
        augmentation="gperxan",
    ),
    seeds=(0, 1, 2),
)

GPERXAN_CAMELYON17 = replace(
    GPERXAN,
    name="gperxan-camelyon17",
    about="gPerXAN, Sec. 4.2 and Table 3: DenseNet-121 at 96 px, one client per hospital, 100 rounds of one epoch",
    data=replace(GPERXAN.data, name="camelyon17", image_size=96, validation=0.2),
    net=replace(GPERXAN.net, backbone="densenet121"),
)

STABLEFDG = Protocol(
    name="stablefdg",
    about="StableFDG, Sec. 4.1: ResNet-18, 30 clients of one domain each, 10 in a round, 50 rounds of 5 epochs",
    data=DataSettings(name="pacs", image_size=224, partition="iid:10", validation=0.1),
    net=NetSettings(backbone="resnet18", weights="imagenet"),
    plan=Plan(
        rounds=50,
        local_epochs=5,
        batch_size=32,
        optimizer=OptimizerPlan(lr=0.001, momentum=0.9, weight_decay=0.0005, schedule="cosine"),
        participation=10,
        server_selection="last",
        augmentation="dassl",
    ),
    seeds=(2024, 2025, 2026),
)

STABLEFDG_MULTI = replace(
    STABLEFDG,
    name="stablefdg-multi",
    about="StableFDG, Table 2: as stablefdg, with several domains per client by Dirichlet(0.5)",
    data=replace(STABLEFDG.data, partition="mixed:30:0.5"),
)

FEDADG = Protocol(
    name="fedadg",
    about="FedADG, Sec. 6.1: AlexNet, one client per domain, 3 + 7 epochs a round, 30 rounds, split 70/30",
    data=DataSettings(name="pacs", image_size=224, validation=0.3),
    net=NetSettings(backbone="alexnet", weights="imagenet"),
    plan=Plan(
        rounds=30,
        local_epochs=10,
        batch_size=16,
        optimizer=OptimizerPlan(lr=0.001, momentum=0.9, weight_decay=1e-05),
        augmentation="jigen",
    ),
    seeds=(0, 1, 2, 3, 4),
)

DIGITS = Protocol(
    name="digits",
    about="for small machines: built-in digits, a ConvNet at 32 px, one client per domain, a minute or two on one core",
    data=DataSettings(name="digits", image_size=32, validation=0.15, in_domain_test=0.15),
    net=NetSettings(backbone="convnet"),
    plan=Plan(
        rounds=30,
        local_epochs=None,
        local_steps=45,
        batch_size=16,
        optimizer=OptimizerPlan(lr=0.03, momentum=0.9, weight_decay=0.0005, schedule="cosine"),
        augmentation="digits",
        test_every=10,
    ),
    seeds=(0, 1, 2),
)

DIGITS_VIT = replace(
    DIGITS,
    name="digits-vit",
    about="for small machines: digits as tokens, timm's smallest ViT at 64 px with AdamW; weights by benchmarks/letters.py",
    data=replace(DIGITS.data, image_size=64),
    net=replace(DIGITS.net, backbone="test_vit"),
    plan=replace(DIGITS.plan, optimizer=OptimizerPlan(name="adamw", lr=0.002, weight_decay=0.01, schedule="cosine")),
)

PACS = Protocol(
    name="pacs",
    about="for small machines: PACS, MobileNetV2 with FedFD's neck at 112 px, one client per domain, six minutes on one core",
    data=DataSettings(name="pacs", image_size=112, validation=0.15, in_domain_test=0.15),
    net=NetSettings(backbone="mobilenetv2_100", bottleneck=256, weights="imagenet"),
    plan=Plan(
        local_epochs=None,
        rounds=6,
        local_steps=30,
        batch_size=32,
        optimizer=OptimizerPlan(lr=0.01, momentum=0.9, weight_decay=0.0005, schedule="cosine"),
        augmentation="domainbed",
    ),
    seeds=(0, 1, 2),
)

PACS_QUICK = replace(
    PACS,
    name="pacs-quick",
    about="for a quick look: as pacs with 5 rounds of 20 steps, which do not train the net out",
    data=replace(PACS.data, validation=0.1, in_domain_test=0.0),
    plan=replace(PACS.plan, rounds=5, local_steps=20),
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
        PACS,
        PACS_QUICK,
    )
}


def protocol_of(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS, f"The protocols are {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]


def protocol_for(data: str) -> Protocol:
    """The small protocol for a dataset that was given without one."""
    return PROTOCOLS["digits"] if data == PROTOCOLS["digits"].data.name else PROTOCOLS["pacs-quick"]


def protocol_named(data: str | None, protocol: str | None) -> Protocol:
    """The protocol that was named, or the small one for the data."""
    return protocol_of(protocol) if protocol else protocol_for(data or "digits")
