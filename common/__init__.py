"""What all rooms above the parser share: errors, retries, times, texts; and the version."""

VERSION = "0.1.0"
