"""What people run: reports, comparisons, benchmarks and tuning."""
