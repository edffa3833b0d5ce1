"""The quality report: missing, duplicate, damaged and late data, as tables and as one HTML page."""
