"""The worker: finds captures, decodes them into lakes, and commits them. It contains the command line and the service."""

VERSION = "0.1.0"
