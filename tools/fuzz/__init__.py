"""Fuzzers: what CI tries a few hundred times, as often as one likes.

A module of this package is a subcommand of its name, and holds it as the click command `main`.
"""
