"""Published data sets in the files their authors distribute. One data set per file; every loader takes a path."""
