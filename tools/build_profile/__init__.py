"""`kernelmint build-profile`: the costs of a build by the compilers' time traces."""
