"""Speed and memory benchmarks with limits: `make bench`."""
