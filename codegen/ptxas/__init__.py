"""What ptxas says in a build's logs, to records and a CSV. The standard library alone."""
