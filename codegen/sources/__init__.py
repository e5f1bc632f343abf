"""Sources of others: archives, fetching and unpacking, excerpts and paths of builds."""
