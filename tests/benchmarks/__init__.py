"""What rankmon costs, as ratios to floors and peers: `make bench`. The latest results are in RESULTS.md."""
