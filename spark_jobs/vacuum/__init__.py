"""VACUUM that keeps the files of pending stages."""
