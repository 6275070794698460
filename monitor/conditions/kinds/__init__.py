"""Every kind of condition, one file each, named as the kind."""
