"""Protocols, runs and their records: what is measured, under which budget, and where it is written."""
