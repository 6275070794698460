"""One module a measure, or a family of them that share a kernel. Whatever `Spec` stands in one is a measure."""
