"""Reads ptxas's lines in a build's logs into records and a CSV. The standard library alone."""
