"""Normalisation layers and the rules that say by which statistics they normalise."""
