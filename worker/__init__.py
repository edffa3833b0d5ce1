"""The part that acts: finds captures, keeps the ledger, writes the lake, and is called from the command line."""

VERSION = "0.1.0"
