"""For every test: the kernels that runs take, before torch computes in this process (see `unseen.core.platform`)."""

from __future__ import annotations

from unseen.core.platform import ask_for_kernels

ask_for_kernels()
