"""The service, the administration of lakes, and the command line."""
