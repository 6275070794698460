"""What rankmon costs, as ratios against floors and peers: `make bench`. The last results are in RESULTS.md."""
