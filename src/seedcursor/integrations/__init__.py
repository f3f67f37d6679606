"""Adapters for other people's libraries: a file each, which alone imports its library."""
