"""From YAML to checked, frozen specs; the expression language; keys."""
