"""From specs to configurations: products, sets, filters, explanations."""
