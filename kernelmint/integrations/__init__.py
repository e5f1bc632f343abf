"""Kernelmint in other libraries' places: each module is imported when it is asked for."""
