"""From graded requests to series: partials by bucket and slice, windows, intervals, finality. Pure."""
