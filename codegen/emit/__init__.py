"""From configurations to the text of every generated file: pure functions."""
