"""Sources of others: archives, what is fetched and unpacked, excerpts and paths of builds."""
