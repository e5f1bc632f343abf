"""Kernelmint in place of other libraries' attention: each module is imported when it is used."""
