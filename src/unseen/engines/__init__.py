"""Engines deliver orders and bring replies; they know no method by name."""
