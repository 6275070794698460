"""One module per measure, or per family with a common kernel. Every `Spec` in one is a measure."""
