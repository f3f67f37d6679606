"""Corpora of many files: an index, readers, a dataset over them and an order that reads well."""
