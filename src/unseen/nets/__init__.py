"""Networks: backbones taken apart into stages, normalisation layers with pluggable statistics, style modules."""
