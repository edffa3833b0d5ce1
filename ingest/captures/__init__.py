"""The bytes of captures: local files and ranges of remote objects."""
