"""The only code that writes into a generated tree."""
