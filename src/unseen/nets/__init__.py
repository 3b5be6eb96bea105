"""Networks: backbones taken apart into stages, normalisation layers with pluggable statistics, style modules."""

from unseen.nets import torchvision_ops as torchvision_ops  # before any module here imports timm: see there
