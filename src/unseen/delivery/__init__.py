"""A trained model, packed for a place that has neither unseen nor torch."""
