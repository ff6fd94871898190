"""Jobs: what one process does with one loader. Each prints what benchmarks.worker defines."""
