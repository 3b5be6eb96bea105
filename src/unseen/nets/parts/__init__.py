"""Modules and tensor functions that one or two methods use."""
