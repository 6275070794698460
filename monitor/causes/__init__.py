"""Where a fall comes from: slices, versions, lost requests. Pure."""
